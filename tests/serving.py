"""Run the server's application on a free port, in a thread of the tests."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from stages.serve.door import address_of, listen
from stages.serve.serve import configured


@contextmanager
def served(app: Any) -> Iterator[str]:
    """Serve ``app`` within the block and yield its address; then stop it as a signal would."""
    import uvicorn

    bound = listen("127.0.0.1", 0)
    server = uvicorn.Server(configured(app))
    thread = threading.Thread(target=server.run, args=([bound],))
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.005)
        yield address_of(bound)
    finally:
        server.should_exit = True
        thread.join(60)
        bound.close()
    assert not thread.is_alive()
