"""The process of the server: its socket, and a stop that loses no request."""

import ipaddress
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import uvicorn

from pipeline.system.errors import PipelineError
from pipeline.system.process import SIGNALS, let_the_next_kill
from pipeline.system.streams import notice

_STOP_SECONDS = 60
_IDLE_SECONDS = 75
"""A connection without a request stays open longer than proxies keep theirs (60 s as a rule), which would meet a closed
one now and then and answer 502."""


def listen(host: str, port: int) -> socket.socket:
    """A listening socket on ``host`` and ``port``; port 0 is any that is free.

    It listens at once, though requests wait until models are loaded: two servers can bind one port until one listens.

    Raises:
        PipelineError: there is no such address here, or it is taken or forbidden.
    """
    if not 0 <= port < 2**16:
        raise PipelineError(f"--port {port}: give 0 to {2**16 - 1}")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        raise PipelineError(f"--host {host}: {getattr(error, 'strerror', None) or error}") from None
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen()
    except OSError as error:
        bound.close()
        raise PipelineError(f"cannot listen on {host}, port {port}: {error.strerror}: give another --port") from None
    return bound


def address_of(bound: socket.socket) -> str:
    """The URL of a server on this socket."""
    host, port = bound.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def is_loopback(bound: socket.socket) -> bool:
    """Whether only this machine can reach the socket."""
    return ipaddress.ip_address(bound.getsockname()[0].partition("%")[0]).is_loopback


def hosts_of(bound: socket.socket, host: str) -> list[str]:
    """The Host headers that a server on this socket answers: any, unless only this machine can reach it.

    Args:
        host: as given to :func:`listen`.
    """
    address = address_of(bound).removeprefix("http://").rpartition(":")[0]
    return ["localhost", "127.0.0.1", "[::1]", address, host] if is_loopback(bound) else ["*"]


def run(app: Any, bound: socket.socket, started: Callable[[], None]) -> None:
    """Serve ``app`` until a signal; then answer what has arrived and return. The second SIGINT or SIGTERM kills.

    Args:
        started: called once requests are answered.
    """
    with closing(bound):
        _Server(configured(app), started).run([bound])


def configured(app: Any) -> uvicorn.Config:
    """How ``app`` is served."""
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
    """Uvicorn's server; a signal ends it as a success."""

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
