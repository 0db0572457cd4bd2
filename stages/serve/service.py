"""Answer requests with the models of a store, by a queue and a thread that loads models; and count them.

``/predict`` takes the bodies of text-embeddings-inference and of Hugging Face's Inference API, which puts options
under ``parameters``. A list of two strings is a pair in the former; here, the task decides between a pair and two
texts.
"""

import asyncio
import json
import sys
import traceback
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import asynccontextmanager
from queue import Full
from typing import Annotated, Any, Literal, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from pipeline.runs.model import Text
from pipeline.system.errors import PipelineError, shortened, validation_problems
from stages.explain import TooLong, Transform, listed
from stages.serve.batching import Batcher, Closed
from stages.serve.door import Limits
from stages.serve.shelf import ServedModel, StoreShelf

T = TypeVar("T")
Body = TypeVar("Body", bound=BaseModel)

_Side = Annotated[Literal["right", "left"], BeforeValidator(lambda side: str(side).lower())]
_INPUTS: Any = Field(description="a text, a list of texts, a pair, or a list of pairs, as the model reads them")
_RETRY_SECONDS = 1
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class PredictBody(BaseModel):
    """What to predict. Keys of other servers' protocols are ignored, as those servers ignore unknown keys."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    inputs: Any = _INPUTS
    truncate: bool = Field(False, description="cut a text that is longer than the model reads, instead of refusing it")
    truncation_direction: _Side = Field("right", description="left: refuse what would be cut at its end")
    raw_scores: bool = Field(False, description="the head's own outputs instead of probabilities")
    top_k: int | None = Field(None, ge=1, description="only so many labels, the highest first")
    function_to_apply: Transform | None = Field(
        None, description="what the scores are: softmax: probabilities; sigmoid: of each raw score; none: raw scores"
    )
    parameters: dict[str, Any] | None = Field(
        None, description="the other options may stand in here; then even the answer to one text is in a list"
    )


class PredictAllBody(PredictBody):
    """What several tasks are to predict."""

    tasks: list[str] | None = Field(
        None, min_length=1, description="names as GET /models lists them; all that read such inputs"
    )


class ExplainBody(BaseModel):
    """The text or pair to explain an answer for."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    inputs: Any = _INPUTS


class Refused(Exception):
    """Raised to refuse a request.

    ``kind`` is an ``error_type`` of text-embeddings-inference if there is a suitable one.
    """

    def __init__(self, status: int, kind: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.kind, self.message, self.headers = status, kind, message, dict(headers or {})


class Metrics:
    """The metrics of one server, in a separate registry; thread-safe.

    Args:
        waiting: returns the number of waiting rows.
        loaded: returns the number of models in memory.
    """

    def __init__(self, waiting: Callable[[], float], loaded: Callable[[], float]) -> None:
        self.registry = CollectorRegistry()

        def made(kind: Any, name: str, text: str, *labels: str, **how: Any) -> Any:
            return kind(f"pipeline_{name}", text, labels, registry=self.registry, **how)

        self._requests = made(Counter, "requests", "Requests by address and status.", "path", "status")
        self._seconds = made(
            Histogram, "request_seconds", "Seconds from a request to its answer.", "path", buckets=_SECONDS
        )
        sizes = tuple(2.0**power for power in range(9))
        self._rows = made(Histogram, "batch_rows", "Texts or pairs that were computed together.", buckets=sizes)
        self._batch_seconds = made(Histogram, "batch_seconds", "Seconds that a batch took.", buckets=_SECONDS)
        self.swaps = made(Counter, "model_swaps", "Tasks that got another model.")
        made(Gauge, "queue_rows", "Texts or pairs that wait.").set_function(waiting)
        made(Gauge, "models_loaded", "Models in memory.").set_function(loaded)

    def request(self, path: str, status: int, seconds: float) -> None:
        self._requests.labels(path, status).inc()
        self._seconds.labels(path).observe(seconds)

    def batch(self, rows: int, seconds: float) -> None:
        self._rows.observe(rows)
        self._batch_seconds.observe(seconds)


class Service:
    """Answers requests with the shelf, the queue, and the thread that loads models."""

    def __init__(self, shelf: StoreShelf, limits: Limits) -> None:
        self.shelf, self.limits = shelf, limits
        self.metrics = Metrics(waiting=lambda: self.batcher.waiting, loaded=lambda: shelf.loaded)
        self.batcher = Batcher(
            max_rows=limits.max_batch,
            max_wait=limits.max_wait / 1000,
            max_queue=limits.max_queue,
            observe=self.metrics.batch,
        )
        self._loader: Executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="loader")

    @asynccontextmanager
    async def running(self, _app: object) -> AsyncIterator[None]:
        """Check the store regularly; at the end, answer the waiting requests."""
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
                self.metrics.swaps.inc(await self._loading(self.shelf.refresh))
                last = ""
            except Exception:
                # The next check may succeed; until then the models in memory are served.
                problem = traceback.format_exc()
                if problem != last:
                    print(problem, end="", file=sys.stderr)
                last = problem

    async def _loading(self, action: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._loader, action, *arguments)

    async def model(self, name: str) -> ServedModel:
        """The model that a request names. Only :class:`Batcher`'s thread calls its ``answers``."""
        self.check_known(name)
        served = self.shelf.find(name)
        return await self._named(name, self.shelf.load) if served is None else served

    async def _named(self, name: str, action: Callable[[str], T]) -> T:
        try:
            return await self._loading(action, name)
        except KeyError:  # removed in the meantime
            raise self._unknown(name) from None
        except PipelineError as error:
            raise Refused(503, "unhealthy", f"model {shortened(name)} cannot be loaded: {error}") from None
        except RuntimeError:  # the executor has shut down
            raise _stopping() from None

    def check_known(self, name: str) -> None:
        """Refuse an unknown name without taking the loading thread's time."""
        if not self.shelf.has(name):
            raise self._unknown(name)

    def _unknown(self, name: str) -> Refused:
        known = ", ".join(self.shelf.tasks) or "none"
        return Refused(404, "not_found", f"no model {shortened(name)}: there are those of {known}")

    async def predict(self, model: ServedModel, body: PredictBody) -> list[Any]:
        """The answer to one text or pair, or a list of answers to several."""
        texts, single = self.read(model, body.inputs)
        may_cut = body.truncate and body.truncation_direction == "right"
        results = await self.compute(model.answers, [(text, may_cut) for text in texts])
        for number, result in enumerate(results):
            if isinstance(result, TooLong):
                raise too_large(f"{_where(number, single)} {result}")
        transform = body.function_to_apply or ("none" if body.raw_scores else "softmax")
        answers = [listed(result, transform, body.top_k) for result in results]
        return answers[0] if single and body.parameters is None else answers

    def read(self, model: ServedModel, inputs: Any, single_name: str = "inputs") -> tuple[list[Text], bool]:
        """The checked texts or pairs for the model, and whether the request holds just one, which has a name."""
        texts, single = _texts_of(inputs, model.is_pair)
        if len(texts) > self.limits.max_batch:
            raise too_large(
                f"inputs has {len(texts)} texts or pairs, more than {self.limits.max_batch}: send fewer at once"
            )
        try:
            names = [single_name if single else _where(number, single) for number in range(len(texts))]
            checked = list(map(model.check, texts, names))
        except PipelineError as error:
            raise _unfit(str(error)) from None
        for number, text in enumerate(checked):
            longest = max(map(len, text)) if isinstance(text, tuple) else len(text)
            if longest > self.limits.max_text:
                raise too_large(
                    f"{names[number]} has {longest} characters, more than {self.limits.max_text}: shorten it"
                )
        return checked, single

    async def compute(
        self, work: Callable[[Sequence[Any]], Sequence[Any]], rows: Sequence[Any], passes: int = 1
    ) -> list[Any]:
        """The results of ``work`` for the rows, computed in the models' thread with ``passes`` passes per row."""
        try:
            return await asyncio.wrap_future(self.batcher.submit(work, rows, passes))
        except Full:
            raise Refused(
                429,
                "overloaded",
                f"more than {self.limits.max_queue} texts or pairs would wait: try again in {_RETRY_SECONDS} s",
                {"retry-after": str(_RETRY_SECONDS)},
            ) from None
        except Closed:
            raise _stopping() from None

    async def predict_all(self, body: PredictAllBody) -> dict[str, Any]:
        """The answers of several tasks, and for tasks left out (never ones that the request names) the reasons.

        Answers one task after the other, because together they could need more rows than the queue holds.
        """
        answers: dict[str, Any] = {}
        refusals: dict[str, Refused] = {}
        names = self.shelf.tasks if body.tasks is None else list(dict.fromkeys(body.tasks))
        for name in names:
            self.check_known(name)
        most = max(self.limits.max_models, len(self.shelf.tasks))
        if len(names) > most:
            raise too_large(f"tasks has {len(names)} names, more than {most}: send fewer at once")
        for name in names:
            try:
                answers[name] = await self.predict(await self.model(name), body)
            except Refused as refused:
                if body.tasks is not None or refused.status not in (413, 422):
                    raise
                refusals[name] = refused
        if refusals and not answers:
            raise next(iter(refusals.values()))
        return {"answers": answers, "left_out": {name: refused.message for name, refused in refusals.items()}}

    async def explain(self, name: str, body: ExplainBody) -> dict[str, Any]:
        model = await self.model(name)
        (text, *others), single = self.read(model, body.inputs, "the text")
        if others or not single:
            raise _unfit("inputs is a list: an explanation is of one text or pair")
        explained, passes = await self._named(name, lambda name: self.shelf.explainer(name, text))
        # An explanation of more texts than the queue holds is computed when nothing else waits.
        (result,) = await self.compute(lambda _: [explained()], [text], min(passes, self.limits.max_queue))
        return result


def _where(number: int, single: bool) -> str:
    return "inputs" if single else f"inputs[{number}]"


def _stopping() -> Refused:
    return Refused(503, "unhealthy", "the server is stopping", {"connection": "close"})


def _unfit(message: str) -> Refused:
    """A 422 for a request that is understood but cannot be answered."""
    return Refused(422, "tokenizer", message)


def too_large(message: str) -> Refused:
    """A refusal of a request beyond a limit of the server."""
    return Refused(413, "validation", message)


def parse(body: type[Body], content: bytes) -> Body:
    """Parse the JSON ``content`` as a ``body``; raises :class:`Refused` with the first mistake."""
    try:
        values = json.loads(content)
    except (ValueError, RecursionError) as error:
        reason = str(error).splitlines()[0] if isinstance(error, ValueError) else "nested too deeply"
        raise _unfit(f"the body is not JSON: {reason}") from None
    if not isinstance(values, dict):
        raise _unfit(f'the body is {shortened(values)}: write an object, such as {{"inputs": "a text"}}')
    if body.model_config["extra"] == "ignore":
        values = _flattened(values)
    try:
        return body.model_validate(values)
    except ValidationError as error:
        raise _unfit(validation_problems(error)[0]) from None


def _flattened(values: dict[str, Any]) -> dict[str, Any]:
    """``values`` with the options in ``parameters`` moved to the top level, and without nulls."""
    options = values.get("parameters")
    flat = {**(options if isinstance(options, dict) else {}), **values}
    if isinstance(options, dict) and "truncate" not in flat and "truncation" in options:  # transformers' name
        flat["truncate"] = options["truncation"] not in (False, "do_not_truncate", None)
    return {key: value for key, value in flat.items() if value is not None}


def _texts_of(inputs: Any, is_pair: bool) -> tuple[list[Any], bool]:
    """The texts or pairs in ``inputs``, and whether there is only one, whose answer then is not in a list.

    Does not check their contents. A list without inner lists is one pair if the task reads pairs; any other list holds
    several texts or pairs, and a text may be wrapped in a list. As for transformers' pipelines, a text or pair may also
    be ``{"text": ..., "text_pair": ...}``.
    """
    if isinstance(inputs, str):
        return [inputs], True
    if isinstance(inputs, dict) and "text" in inputs:
        return [_joined(inputs)], True
    if not isinstance(inputs, list):
        raise _unfit(f"inputs is {shortened(inputs)}: give a text, a list of texts, a pair or a list of pairs")
    if not inputs:
        raise _unfit("inputs is empty: give at least one text")
    if is_pair and not any(isinstance(item, list | dict) for item in inputs):
        return [inputs], True
    items = [_joined(item) for item in inputs]
    return items if is_pair else [
        item[0] if isinstance(item, list) and len(item) == 1 else item for item in items
    ], False


def _joined(item: Any) -> Any:
    """The text or pair in ``{"text": ..., "text_pair": ...}``; anything else as it is."""
    if not (isinstance(item, dict) and "text" in item and item.keys() <= {"text", "text_pair"}):
        return item
    return item["text"] if item.get("text_pair") is None else [item["text"], item["text_pair"]]
