"""Run the server process, and stop it without losing a request."""

import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import uvicorn

from pipeline.system.process import SIGNALS, let_the_next_kill
from pipeline.system.streams import notice

_STOP_SECONDS = 60
_IDLE_SECONDS = 75
"""Idle connections stay open longer than proxies keep theirs (usually 60 s); otherwise a proxy would sometimes meet a
closed one and answer 502."""


def run(app: Any, bound: socket.socket, started: Callable[[], None]) -> None:
    """Serve ``app`` until a signal, then answer what has arrived and return. A second SIGINT or SIGTERM kills.

    Args:
        started: called once the server answers requests.
    """
    with closing(bound):
        _Server(configured(app), started).run([bound])


def configured(app: Any) -> uvicorn.Config:
    """Uvicorn's configuration for ``app``."""
    return uvicorn.Config(
        app,
        http="h11",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        lifespan="on",
        timeout_keep_alive=_IDLE_SECONDS,
        timeout_graceful_shutdown=_STOP_SECONDS,
    )


class _Server(uvicorn.Server):
    """Uvicorn's server, which a signal ends with success."""

    def __init__(self, config: uvicorn.Config, on_start: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_start = on_start

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_start()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        def stop(_number: int, _frame: object) -> None:
            self.should_exit = True
            let_the_next_kill()
            notice("stopping: no new requests; those that arrived are answered")

        handled = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.signal(number, stop) for number in handled}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
