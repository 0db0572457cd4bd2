"""The process of the server: its socket, and a stop that loses no request."""

import ipaddress
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import uvicorn

from pipeline.system.errors import PipelineError

_STOP_SECONDS = 60


def listen(host: str, port: int) -> socket.socket:
    """A socket on ``host`` and ``port``; port 0 is any that is free.

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


def run(app: Any, bound: socket.socket, started: Callable[[], None]) -> None:
    """Serve ``app`` until SIGINT or SIGTERM; then answer what has arrived and return. The second signal kills.

    Args:
        started: called once requests are answered.
    """
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        lifespan="on",
        timeout_graceful_shutdown=_STOP_SECONDS,
    )
    with closing(bound):
        _Server(config, started).run([bound])


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
        def stop(number: int, _frame: object) -> None:
            self.should_exit = True
            signal.signal(number, signal.SIG_DFL)
            print("stopping: no new requests; those that arrived are answered", file=sys.stderr)

        before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
