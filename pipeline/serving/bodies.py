"""The bodies of requests, and the answer to a refused one.

A body for ``/predict`` is that of text-embeddings-inference: ``inputs``, ``raw_scores``, ``truncate``. There a list of
strings is a pair; here the task says whether it is a pair or several texts.
"""

import json
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pipeline.system.errors import shortened, validation_problems

Body = TypeVar("Body", bound=BaseModel)
Text = str | tuple[str, str]

_STRICT = ConfigDict(extra="forbid", strict=True, frozen=True)
_INPUTS: Any = Field(description="a text, a list of texts, a pair, or a list of pairs, as the model reads them")


class PredictBody(BaseModel):
    """What is to be predicted."""

    model_config = _STRICT

    inputs: Any = _INPUTS
    raw_scores: bool = Field(False, description="the head's own outputs instead of probabilities")
    truncate: bool = Field(False, description="cut what is longer than the model reads, instead of refusing it")


class PredictAllBody(PredictBody):
    """What several tasks are to predict."""

    tasks: list[str] | None = Field(None, description="names as GET /models lists them; all that read such inputs")


class ExplainBody(BaseModel):
    """The text or pair to explain an answer for."""

    model_config = _STRICT

    inputs: Any = _INPUTS


class Refused(Exception):
    """A request that is not answered, and why.

    ``kind`` is one of text-embeddings-inference's ``error_type`` where it has one.
    """

    def __init__(self, status: int, kind: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.kind, self.message, self.headers = status, kind, message, dict(headers or {})


def unfit(message: str) -> Refused:
    """The request is understood, but cannot be answered as it is."""
    return Refused(422, "tokenizer", message)


def too_large(message: str) -> Refused:
    """The request is beyond a limit of the server."""
    return Refused(413, "validation", message)


def parse(body: type[Body], content: bytes) -> Body:
    """The ``body`` in the JSON ``content``; :class:`Refused` with the first mistake where it is not one."""
    try:
        values = json.loads(content)
    except (ValueError, RecursionError) as error:
        reason = str(error).splitlines()[0] if isinstance(error, ValueError) else "nested too deeply"
        raise unfit(f"the body is not JSON: {reason}") from None
    if not isinstance(values, dict):
        raise unfit(f'the body is {shortened(values)}: write an object, such as {{"inputs": "a text"}}')
    try:
        return body.model_validate(values)
    except ValidationError as error:
        raise unfit(validation_problems(error)[0]) from None


def texts_of(inputs: Any, is_pair: bool) -> tuple[list[Any], bool]:
    """The texts or pairs in ``inputs``, and whether there is only one, which is then answered outside a list.

    Their contents are not checked. A list is one pair, if pairs are read and it holds no list, else several texts or
    pairs; a text may stand in a list of its own.
    """
    if isinstance(inputs, str):
        return [inputs], True
    if not isinstance(inputs, list):
        raise unfit(f"inputs is {shortened(inputs)}: give a text, a list of texts, a pair or a list of pairs")
    if not inputs:
        raise unfit("inputs is empty: give at least one text")
    if is_pair:
        if not any(isinstance(each, list) for each in inputs):
            return [inputs], True
        return inputs, False
    return [each[0] if isinstance(each, list) and len(each) == 1 else each for each in inputs], False
