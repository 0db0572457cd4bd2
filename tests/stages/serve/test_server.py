"""The server's socket."""

from contextlib import closing

import pytest

pytest.importorskip("uvicorn", reason="the extra serve is not installed")

from pipeline.system.errors import PipelineError
from stages.serve.door import listen


def test_of_two_servers_that_start_at_once_on_one_port_the_second_is_refused_before_it_loads() -> None:
    with closing(listen("127.0.0.1", 0)) as first:
        port = first.getsockname()[1]
        with pytest.raises(PipelineError, match=f"cannot listen on 127.0.0.1, port {port}: Address already in use"):
            listen("127.0.0.1", port)
