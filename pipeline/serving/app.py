"""The addresses of the server: predictions, what is served, and the page to try it.

Errors are ``{"error": "...", "error_type": "..."}``: 404 no such model, 405 no such method, 408 a body that does not
arrive, 413 beyond a limit, 422 unfit, 429 too much is waiting, 500 a fault of the server, 503 stopping.
"""

import asyncio
import base64
import hashlib
import re
import sys
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse
from pydantic import BaseModel
from starlette.requests import ClientDisconnect

from pipeline.serving.answers import Answer, TooLong
from pipeline.serving.batching import Batcher, Closed, QueueFull
from pipeline.serving.bodies import (
    ExplainBody,
    PredictAllBody,
    PredictBody,
    Refused,
    Text,
    parse,
    texts_of,
    too_large,
    unfit,
)
from pipeline.serving.metrics import CONTENT_TYPE, Metrics
from pipeline.system.errors import PipelineError, printable, shortened
from pipeline.system.version import VERSION

T = TypeVar("T")
B = TypeVar("B", bound=BaseModel)

PAGE = Path(__file__).parent / "page.html"
_BODY_SECONDS = 30.0
_RETRY_SECONDS = 1
_CLIENT_WENT = 499
"""What nginx logs for a client that goes before its answer; only counted, never sent."""
_HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}


@dataclass(frozen=True)
class Limits:
    """What the server takes."""

    body: int = 2**20
    """Bytes of a request."""
    text: int = 2**16
    """Characters of a text; to count the tokens of one takes up to a thousand bytes for each."""
    batch: int = 64
    """Texts or pairs of a request, and of a forward pass."""
    queue: int = 1024
    """Texts or pairs that wait."""
    wait: float = 0.004
    """Seconds that a request waits for others to be computed with."""
    poll: float = 2.0
    """Seconds between two looks at the store."""
    models: int = 64
    """Models in memory."""


class Served(Protocol):
    """A model in memory. Only :class:`Batcher`'s thread calls :meth:`answers`."""

    @property
    def name(self) -> str: ...  # TASK@RUN
    @property
    def is_pair(self) -> bool: ...
    def check(self, text: Any, where: str) -> Any:
        """The text or pair as the model reads it; a :class:`PipelineError` that says ``where`` it stands if unfit."""

    def answers(self, rows: Sequence[tuple[Text, bool]]) -> list[Answer | TooLong]:
        """An answer a row, which is a text or pair and whether it may be cut."""


class Shelf(Protocol):
    """The models of a store. Only one thread at a time calls the methods that load."""

    @property
    def default(self) -> str | None: ...
    @property
    def tasks(self) -> list[str]: ...
    @property
    def loaded(self) -> int: ...
    @property
    def swaps(self) -> int: ...
    def models(self) -> list[dict[str, Any]]: ...
    def has(self, name: str) -> bool:
        """Whether there is a model of a task or TASK@RUN, in memory or not."""

    def find(self, name: str) -> Served | None:
        """The model of a task or TASK@RUN if it is in memory."""

    def load(self, name: str) -> Served:
        """The same, loaded if need be; KeyError for an unknown name."""

    def explainer(self, name: str) -> Callable[[Text], dict[str, Any]]:
        """What explains an answer of the model, with all that it needs in memory; KeyError for an unknown name."""

    def refresh(self) -> None:
        """Serve what the store holds now."""


class Service:
    """Requests to answers: the shelf, the queue before its models, and the thread that loads them."""

    def __init__(self, shelf: Shelf, limits: Limits) -> None:
        self.shelf, self.limits = shelf, limits
        self.metrics = Metrics(
            {
                "pipeline_queue_rows": ("Texts or pairs that wait.", lambda: self.batcher.waiting),
                "pipeline_models_loaded": ("Models in memory.", lambda: shelf.loaded),
                "pipeline_model_swaps_total": ("Tasks that got another model.", lambda: shelf.swaps),
            }
        )
        self.batcher = Batcher(
            max_rows=limits.batch, max_wait=limits.wait, max_queue=limits.queue, observe=self.metrics.batch
        )
        self._loader: Executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="loader")

    @asynccontextmanager
    async def running(self, _app: FastAPI) -> AsyncIterator[None]:
        """Look at the store now and then; at the end answer what is waiting."""
        watching = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            watching.cancel()
            await asyncio.to_thread(self.batcher.close)
            await asyncio.to_thread(self._loader.shutdown, wait=True, cancel_futures=True)

    async def _watch(self) -> None:
        last = ""
        while True:
            await asyncio.sleep(self.limits.poll)
            try:
                await self._loading(self.shelf.refresh)
                last = ""
            except Exception:
                # The next look may go better; until then the models in memory are served.
                problem = traceback.format_exc()
                if problem != last:
                    print(problem, end="", file=sys.stderr)
                last = problem

    async def _loading(self, action: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._loader, action, *arguments)

    async def model(self, name: str) -> Served:
        """The model of a name that a request gave."""
        self.check_known(name)
        served = self.shelf.find(name)
        return await self._named(name, self.shelf.load) if served is None else served

    async def _named(self, name: str, action: Callable[[str], T]) -> T:
        try:
            return await self._loading(action, name)
        except KeyError:  # it was removed meanwhile
            raise self._unknown(name) from None
        except PipelineError as error:
            raise Refused(503, "unhealthy", f"model {shortened(name)} cannot be loaded: {error}") from None
        except RuntimeError:  # of an executor that is shut down
            raise _stopping() from None

    def check_known(self, name: str) -> None:
        """Refuse an unknown name here, where it costs no time of the thread that loads."""
        if not self.shelf.has(name):
            raise self._unknown(name)

    def _unknown(self, name: str) -> Refused:
        known = ", ".join(self.shelf.tasks) or "none"
        return Refused(404, "not_found", f"no model {shortened(name)}: there are those of {known}")

    async def predict(self, model: Served, body: PredictBody) -> list[Any]:
        """The answer to one text or pair, or a list of the answers to several."""
        texts, single = self.read(model, body.inputs)
        results = await self.compute(model.answers, [(text, body.truncate) for text in texts])
        for number, result in enumerate(results):
            if isinstance(result, TooLong):
                raise too_large(f"{_where(number, single)} {result}")
        listed = [result.listed(body.raw_scores) for result in results]
        return listed[0] if single else listed

    def read(self, model: Served, inputs: Any) -> tuple[list[Text], bool]:
        """The texts or pairs that the model can answer, and whether it is one alone."""
        texts, single = texts_of(inputs, model.is_pair)
        if len(texts) > self.limits.batch:
            raise too_large(
                f"inputs has {len(texts)} texts or pairs, more than {self.limits.batch}: send fewer at once"
            )
        try:
            checked = [model.check(text, _where(number, single)) for number, text in enumerate(texts)]
        except PipelineError as error:
            raise unfit(str(error)) from None
        for number, text in enumerate(checked):
            longest = max(map(len, text)) if isinstance(text, tuple) else len(text)
            if longest > self.limits.text:
                raise too_large(
                    f"{_where(number, single)} has {longest} characters, more than {self.limits.text}: shorten it"
                )
        return checked, single

    async def compute(self, work: Callable[[Sequence[Any]], Sequence[Any]], rows: Sequence[Any]) -> list[Any]:
        """``work`` of the rows, in the thread of the models."""
        try:
            return await asyncio.wrap_future(self.batcher.submit(work, rows))
        except QueueFull:
            raise Refused(
                429,
                "overloaded",
                f"more than {self.limits.queue} texts or pairs would wait: try again in {_RETRY_SECONDS} s",
                {"retry-after": str(_RETRY_SECONDS)},
            ) from None
        except Closed:
            raise _stopping() from None

    async def predict_all(self, body: PredictAllBody) -> dict[str, Any]:
        """The answers of several tasks, and why those that were not named have none.

        One task after the other: together, many would ask for more rows than the queue holds.
        """
        answers: dict[str, Any] = {}
        refusals: dict[str, Refused] = {}
        if body.tasks is not None:
            self._check_named(body.tasks)
        for name in self.shelf.tasks if body.tasks is None else body.tasks:
            try:
                answers[name] = await self.predict(await self.model(name), body)
            except Refused as refused:
                if body.tasks is not None or refused.status not in (413, 422):
                    raise
                refusals[name] = refused
        if refusals and not answers:
            raise next(iter(refusals.values()))
        return {"answers": answers, "left_out": {name: refused.message for name, refused in refusals.items()}}

    def _check_named(self, names: Sequence[str]) -> None:
        """Refuse names of which one is unknown or repeated, or that are more than models that stay in memory."""
        seen = set[str]()
        for name in names:
            self.check_known(name)
            if name in seen:
                raise unfit(f"tasks names {shortened(name)} twice: name each once")
            seen.add(name)
        most = max(self.limits.models, len(self.shelf.tasks))
        if len(names) > most:
            raise too_large(f"tasks has {len(names)} names, more than {most}: send fewer at once")

    async def explain(self, name: str, body: ExplainBody) -> dict[str, Any]:
        model = await self.model(name)
        (text, *others), single = self.read(model, body.inputs)
        if others or not single:
            raise unfit("inputs is a list: an explanation is of one text or pair")
        explain = await self._named(name, self.shelf.explainer)
        (result,) = await self.compute(lambda _: [explain(text)], [text])
        return result

    async def body(self, request: Request, body: type[B]) -> B:
        """The body of a request, read no further than its limit."""
        most = self.limits.body
        refused = too_large(f"the body is longer than {most} bytes")
        length = request.headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > most:
            raise refused
        content = bytearray()
        try:
            async with asyncio.timeout(_BODY_SECONDS):
                async for chunk in request.stream():
                    content += chunk
                    if len(content) > most:
                        raise refused
        except TimeoutError:
            raise Refused(408, "validation", f"the body did not arrive within {_BODY_SECONDS:g} s") from None
        return parse(body, bytes(content))


def make_app(shelf: Shelf, limits: Limits) -> FastAPI:
    """The server's application."""
    service = Service(shelf, limits)
    # FastAPI's own pages of documentation load scripts from elsewhere; /openapi.json describes the same.
    app = FastAPI(
        title="Adapter fusion pipeline", version=VERSION, docs_url=None, redoc_url=None, lifespan=service.running
    )
    app.state.service = service
    app.add_middleware(_Counted, metrics=service.metrics)
    page, policy = read_page()

    @app.exception_handler(Refused)
    async def refused(_request: Request, error: Refused) -> JSONResponse:
        return _error(error.status, error.kind, error.message, error.headers)

    @app.exception_handler(404)
    async def missing(request: Request, _error_: Exception) -> JSONResponse:
        return _error(404, "not_found", f"no such address: {shortened(request.url.path)}")

    @app.exception_handler(405)
    async def method(request: Request, _error_: Exception) -> JSONResponse:
        return _error(405, "not_found", f"{request.method} is not for this address")

    # Some load balancers ask with HEAD whether a server is there.
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
    async def metrics() -> PlainTextResponse:
        return PlainTextResponse(service.metrics.text(), media_type=CONTENT_TYPE)

    @app.get("/models")
    async def models() -> JSONResponse:
        return JSONResponse({"default": shelf.default, "models": shelf.models()})

    @app.post("/predict", openapi_extra=_described(PredictBody))
    async def predict(request: Request) -> JSONResponse:
        if shelf.default is None:
            raise Refused(
                404,
                "not_found",
                f"there is no default model (serve --model): POST /models/TASK/predict, {_names(shelf)}",
            )
        return await answer(shelf.default, request)

    @app.post("/predict/all", openapi_extra=_described(PredictAllBody))
    async def predict_all(request: Request) -> JSONResponse:
        return JSONResponse(await service.predict_all(await service.body(request, PredictAllBody)))

    @app.post("/models/{name}/predict", openapi_extra=_described(PredictBody))
    async def predict_by(name: str, request: Request) -> JSONResponse:
        return await answer(name, request)

    @app.post("/models/{name}/explain", openapi_extra=_described(ExplainBody))
    async def explain(name: str, request: Request) -> JSONResponse:
        return JSONResponse(await service.explain(name, await service.body(request, ExplainBody)))

    async def answer(name: str, request: Request) -> JSONResponse:
        body = await service.body(request, PredictBody)
        model = await service.model(name)
        return JSONResponse(await service.predict(model, body), headers={"x-model": model.name})

    return app


class _Counted:
    """ASGI middleware: counts requests, adds the headers of all answers, and answers where the rest fails."""

    def __init__(self, app: Callable[..., Awaitable[None]], metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status = time.perf_counter(), 0

        async def counted(message: dict[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                extra = [(key.encode(), value.encode()) for key, value in _HEADERS.items()]
                message = {**message, "headers": [*message.get("headers", ()), *extra]}
            await send(message)

        try:
            await self._app(scope, receive, counted)
        except ClientDisconnect:  # in the middle of its body, so that nobody waits for an answer
            status = status or _CLIENT_WENT
        except Exception:
            traceback.print_exc(file=sys.stderr)
            if status:  # it has begun: the connection is all that can be closed
                raise
            await _error(500, "backend", "the server failed: its log says why")(scope, receive, counted)
        finally:
            # The address as it was declared, so that there are as many as the server has.
            path = getattr(scope.get("route"), "path", "other")
            self._metrics.request(path, status, time.perf_counter() - started)


def read_page() -> tuple[str, str]:
    """The page to try the models, and a policy under which it runs only its own script and loads nothing else."""
    page = PAGE.read_text(encoding="utf-8")
    hashes = {}
    for tag in ("style", "script"):
        (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        hashes[tag] = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
    return page, (
        f"default-src 'none'; style-src 'sha256-{hashes['style']}'; script-src 'sha256-{hashes['script']}';"
        " connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def _where(number: int, single: bool) -> str:
    return "inputs" if single else f"inputs[{number}]"


def _names(shelf: Shelf) -> str:
    return f"where TASK is one of {', '.join(shelf.tasks)}"


def _stopping() -> Refused:
    return Refused(503, "unhealthy", "the server is stopping", {"connection": "close"})


def _error(status: int, kind: str, message: str, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"error": printable(message), "error_type": kind}, status, headers)


def _described(body: type[BaseModel]) -> dict[str, Any]:
    """What OpenAPI says of a body that is read by hand."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": body.model_json_schema()}}}}
