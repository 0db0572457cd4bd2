"""The bodies of requests, and the answer to a refused one.

``/predict`` takes the bodies of text-embeddings-inference and of Hugging Face's Inference API, which puts options
under ``parameters``. A list of two strings is a pair in the former; here, the task decides between a pair and two
texts.
"""

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from pipeline.system.errors import shortened, validation_problems

Body = TypeVar("Body", bound=BaseModel)
Text = str | tuple[str, str]

Transform = Literal["softmax", "sigmoid", "none"]
_Side = Annotated[Literal["right", "left"], BeforeValidator(lambda side: str(side).lower())]
_INPUTS: Any = Field(description="a text, a list of texts, a pair, or a list of pairs, as the model reads them")


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


def unfit(message: str) -> Refused:
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
        raise unfit(f"the body is not JSON: {reason}") from None
    if not isinstance(values, dict):
        raise unfit(f'the body is {shortened(values)}: write an object, such as {{"inputs": "a text"}}')
    if body.model_config["extra"] == "ignore":
        values = _flattened(values)
    try:
        return body.model_validate(values)
    except ValidationError as error:
        raise unfit(validation_problems(error)[0]) from None


def _flattened(values: dict[str, Any]) -> dict[str, Any]:
    """``values`` with the options in ``parameters`` moved to the top level, and without nulls."""
    options = values.get("parameters")
    flat = {**(options if isinstance(options, dict) else {}), **values}
    if isinstance(options, dict) and "truncate" not in flat and "truncation" in options:  # transformers' name
        flat["truncate"] = options["truncation"] not in (False, "do_not_truncate", None)
    return {key: value for key, value in flat.items() if value is not None}


def texts_of(inputs: Any, is_pair: bool) -> tuple[list[Any], bool]:
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
        raise unfit(f"inputs is {shortened(inputs)}: give a text, a list of texts, a pair or a list of pairs")
    if not inputs:
        raise unfit("inputs is empty: give at least one text")
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
