"""Serve the models of a store over HTTP: predictions, explanations, the served models, and the page to try them.

Errors are ``{"error": "...", "error_type": "..."}``: 400 disallowed Host header, 404 unknown model, 405 method not
allowed, 413 beyond a limit, 422 unfit body, 429 queue full, 500 server fault, 503 stopping.
"""

import base64
import hashlib
import re
import signal
import socket
import sys
import time
import traceback
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect

from pipeline.settings.recipe import Precision
from pipeline.system.errors import printable, shortened
from pipeline.system.process import SIGNALS, let_the_next_kill
from pipeline.system.streams import notice
from pipeline.system.version import VERSION
from stages.serve.door import Limits, address_of, hosts_of, is_loopback, listen
from stages.serve.service import (
    Body,
    ExplainBody,
    Metrics,
    PredictAllBody,
    PredictBody,
    Refused,
    Service,
    parse,
    too_large,
)
from stages.serve.shelf import StoreShelf

_PAGE = Path(__file__).parent / "page.html"
_STOP_SECONDS = 60
_IDLE_SECONDS = 75
"""Idle connections stay open longer than proxies keep theirs (usually 60 s); otherwise a proxy would sometimes meet a
closed one and answer 502."""
_CLIENT_WENT = 499
"""Nginx's status for a client that disconnects before its answer; counted, never sent."""
_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
)


def serve(
    store: Path,
    *,
    host: str,
    port: int,
    targets: Sequence[str],
    backbone: str | None,
    precision: Precision,
    limits: Limits,
) -> None:
    """Serve until SIGINT, SIGTERM or SIGHUP, then answer the requests that have arrived and return.

    Prints the server's address on standard output once it answers.

    Args:
        targets: tasks, TASK@RUN or artifacts' folders in the store. A run is what its task's name stands for; the first
            target answers ``POST /predict``. Empty: the best run of each task, and the only task, if there is just one.
        backbone: folder or Hub id; None: the one in the first target's manifest, or in all manifests of the store.

    Raises:
        PipelineError: the address is taken, a model does not exist, or the store has models of several backbones.
    """
    with listen(host, port) as bound:
        shelf = StoreShelf.open(store, targets, backbone, precision, limits.max_models)
        if not is_loopback(bound):
            notice(f"warning: {address_of(bound)} can be reached from other machines, and asks for no password")
        served = f"{', '.join(shelf.tasks)}; POST /predict asks {shelf.default or 'none of them: give --model'}"
        app = make_app(shelf, limits, hosts_of(bound, host))
        _Server(configured(app), f"serving {address_of(bound)} ({served})").run([bound])


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
    """Uvicorn's server, which says that it has started, and which a signal ends with success; a second one kills."""

    def __init__(self, config: uvicorn.Config, started: str) -> None:
        super().__init__(config)
        self._started = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        print(self._started, flush=True)

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


def make_app(shelf: StoreShelf, limits: Limits, hosts: Sequence[str] = ("*",)) -> FastAPI:
    """The server's application.

    Args:
        hosts: the names and addresses allowed in the Host header. The check stops a web page whose name later resolves
            to 127.0.0.1 (DNS rebinding) from reading answers of a server on its visitor's machine.
    """
    service = Service(shelf, limits)
    # FastAPI's documentation pages load scripts from elsewhere; /openapi.json has the same content.
    app = FastAPI(
        title="Adapter fusion pipeline", version=VERSION, docs_url=None, redoc_url=None, lifespan=service.running
    )
    app.state.service = service
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=hosts, www_redirect=False)
    app.add_middleware(_Counted, metrics=service.metrics)  # last, so it is outermost and counts what others refuse

    @app.exception_handler(Refused)
    async def refused(_request: Request, error: Refused) -> JSONResponse:
        return _error(error.status, error.kind, error.message, error.headers)

    @app.exception_handler(HTTPException)
    async def missing(request: Request, error: HTTPException) -> JSONResponse:
        return _error(error.status_code, "not_found", f"{request.method} {shortened(request.url.path)}: {error.detail}")

    _add_routes(app, service)
    return app


def _add_routes(app: FastAPI, service: Service) -> None:
    shelf, most = service.shelf, service.limits.max_body
    page, policy = read_page()

    # Some load balancers send HEAD to check that a server is up.
    @app.head("/", include_in_schema=False)
    @app.get("/", response_class=HTMLResponse)
    async def index() -> HTMLResponse:
        return HTMLResponse(page, headers={"content-security-policy": policy})

    @app.head("/health", include_in_schema=False)
    @app.get("/health")
    async def health() -> JSONResponse:
        is_well = service.batcher.is_alive and bool(shelf.tasks)
        return JSONResponse({"status": "ok" if is_well else "unhealthy"}, 200 if is_well else 503)

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        return Response(generate_latest(service.metrics.registry), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    @app.get("/models")
    async def models() -> JSONResponse:
        return JSONResponse({"default": shelf.default, "models": shelf.models()})

    async def answer(name: str, request: Request) -> JSONResponse:
        body = await _read(PredictBody, request, most)
        model = await service.model(name)
        return JSONResponse(await service.predict(model, body), headers={"x-model": model.name})

    @app.post("/", include_in_schema=False)  # clients of an Inference Endpoint know only the server's address
    @app.post("/predict", openapi_extra=_described(PredictBody))
    async def predict(request: Request) -> JSONResponse:
        if shelf.default is None:
            where = f"POST /models/TASK/predict, where TASK is one of {', '.join(shelf.tasks)}"
            raise Refused(404, "not_found", f"there is no default model (serve --model): {where}")
        return await answer(shelf.default, request)

    @app.post("/predict/all", openapi_extra=_described(PredictAllBody))
    async def predict_all(request: Request) -> JSONResponse:
        return JSONResponse(await service.predict_all(await _read(PredictAllBody, request, most)))

    @app.post("/models/{name}/predict", openapi_extra=_described(PredictBody))
    async def predict_by(name: str, request: Request) -> JSONResponse:
        return await answer(name, request)

    @app.post("/models/{name}/explain", openapi_extra=_described(ExplainBody))
    async def explain(name: str, request: Request) -> JSONResponse:
        return JSONResponse(await service.explain(name, await _read(ExplainBody, request, most)))


async def _read(body: type[Body], request: Request, most: int) -> Body:
    """Read and parse the body of a request, up to ``most`` bytes."""
    refused = too_large(f"the body is longer than {most} bytes")
    length = request.headers.get("content-length", "0")
    if not length.isdecimal() or int(length) > most:
        raise refused
    content = bytearray()
    async for chunk in request.stream():
        content += chunk
        if len(content) > most:
            raise refused
    return parse(body, bytes(content))


class _Counted:
    """ASGI middleware: counts requests, adds headers to every answer, and answers 500 if the application fails."""

    def __init__(self, app: Callable[..., Awaitable[None]], metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status = time.perf_counter(), 0
        # Redirecting to the path without its last slash would use http even behind an https proxy.
        scope["path"] = scope["path"].rstrip("/") or "/"

        async def counted(message: dict[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message.get("headers", ()), *_HEADERS]}
            await send(message)

        try:
            await self._app(scope, receive, counted)
        except ClientDisconnect:  # in the middle of the body, so nobody waits for an answer
            status = status or _CLIENT_WENT
        except Exception:
            traceback.print_exc(file=sys.stderr)
            if status:  # the answer has begun: all that is left is to close the connection
                raise
            await _error(500, "backend", "the server failed: its log says why")(scope, receive, counted)
        finally:
            # Use the declared route, so that names in requests add no series.
            path = getattr(scope.get("route"), "path", "other")
            self._metrics.request(path, status, time.perf_counter() - started)


def read_page() -> tuple[str, str]:
    """The page to try the models, and a content security policy that allows only the page's script."""
    page = _PAGE.read_text(encoding="utf-8")
    hashes = {}
    for tag in ("style", "script"):
        (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        hashes[tag] = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
    return page, (
        f"default-src 'none'; style-src 'sha256-{hashes['style']}'; script-src 'sha256-{hashes['script']}';"
        " connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def _error(status: int, kind: str, message: str, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"error": printable(message), "error_type": kind}, status, headers)


def _described(body: type[BaseModel]) -> dict[str, Any]:
    """OpenAPI's description of a body that FastAPI does not parse."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": body.model_json_schema()}}}}
