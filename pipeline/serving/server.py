"""The process of the server: its socket, and a stop that loses no request."""

import asyncio
import ipaddress
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from pipeline.system.errors import PipelineError
from pipeline.system.process import SIGNALS, let_the_next_kill
from pipeline.system.streams import notice

_STOP_SECONDS = 60
_IDLE_SECONDS = 75
"""A connection without a request stays open longer than proxies keep theirs (60 s as a rule), which would meet a closed
one now and then and answer 502."""
HEADER_SECONDS = 20.0
"""A client may take so long for the headers of a request."""


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


def own_names(bound: socket.socket, host: str) -> set[str] | None:
    """The names, in lower case, that requests may call a server on this socket by; None where any will do.

    Who can be reached from other machines has names that are not known here.

    Args:
        host: as given to :func:`listen`.
    """
    return {"localhost", host.lower()} if is_loopback(bound) else None


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
        http=_Impatient,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        lifespan="on",
        timeout_keep_alive=_IDLE_SECONDS,
        timeout_graceful_shutdown=_STOP_SECONDS,
    )


class _Impatient(H11Protocol):
    """Uvicorn's protocol, which by itself waits for ever for a client that sends its headers slowly or not at all."""

    _limit: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._expect_headers()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._expect_headers()

    def connection_lost(self, error: Exception | None) -> None:
        self._stop_expecting()
        super().connection_lost(error)

    def _expect_headers(self) -> None:
        """Give the client its time, from the first byte of a request on, or from when it connected."""
        if self._is_answering:
            self._stop_expecting()
        elif self._limit is None:
            self._limit = self.loop.call_later(HEADER_SECONDS, self._give_up)

    def _stop_expecting(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None

    def _give_up(self) -> None:
        if not self._is_answering:
            self.transport.close()

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete


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
