"""Explain an answer for one text: the words and the adapters that it depends on, and what a fusion listened to."""

import math
import re
from collections.abc import Sequence
from typing import Any, Literal

import pandas as pd

from pipeline.runs.model import Model, Predicted, Text
from pipeline.system.errors import PipelineError

MOST_WORDS = 64
"""Words that are masked one by one, in one batch."""
_SCORE = "score"
"""The label of the only number of a task of scores."""
Transform = Literal["softmax", "sigmoid", "none"]


class TooLong(PipelineError):
    """A text has more tokens than the model reads."""


def explain(model: Model, text: Text, singles: Sequence[Model]) -> dict[str, Any]:
    """The answer of ``model`` for ``text`` beside those of ``singles``, which read as many texts, as JSON has it.

    Answers are as :func:`listed` gives them; ``without`` has one for each adapter that is left out, where there
    are several, and ``words`` has one for each of the first :data:`MOST_WORDS` words. ``inputs`` has the tokens of each
    input, a siamese pair being two, and by layer and site the shares (tokens, adapters) of a fusion; CLS pooling
    computes only the first token in the last layer.

    Raises:
        PipelineError: the text is not what the model reads, or blank.
    """
    names, masked = model.adapters, masked_words(text, model.mask_token)
    without = model.predict([rest for *_, rest in masked], batch_size=MOST_WORDS)
    shares = model.explain(text) if names else pd.DataFrame(columns=["input", "adapter", "share"])
    return {
        "task": model.task,
        "run": model.run,
        "kind": model.kind,
        "classes": list(model.classes),
        "answer": _answer(model, text),
        "tokens": model.lengths([text])[0],  # of the whole text, before it is cut
        "max_length": model.max_length,
        "adapters": list(names),
        "mean_shares": {name: float(shares.loc[shares["adapter"] == name, "share"].mean()) for name in names},
        "singles": [
            {
                "adapter": named if (named := f"{single.task}@{single.run}") in names else single.task,
                "task": single.task,
                "run": single.run,
                "same_labels": single.classes == model.classes,
                "answer": _answer(single, text),
            }
            for single in singles
        ],
        "without": [
            {"adapter": name, "answer": _answer(model, text, without=name)}
            for name in (names if len(names) > 1 else ())
        ],
        "words": [
            {"text": number, "word": word, "answer": listed(predicted)}
            for (number, word, _), predicted in zip(masked, without, strict=True)
        ],
        "inputs": [_input_shares(table, names) for _, table in shares.groupby("input")],
    }


def masked_words(text: Text, mask: str) -> list[tuple[int, str, Text]]:
    """For each word of the text or pair, up to :data:`MOST_WORDS`: the number of its text, the word, and what is left.

    A mask keeps the places of the other words, on which answers depend too. Without a ``mask``, the word is left out,
    unless it is the only one: a blank text has no answer.
    """
    texts = [text] if isinstance(text, str) else [*text]
    found: list[tuple[int, str, Text]] = []
    for number, own in enumerate(texts):
        for word in re.finditer(r"\S+", own):
            rest = f"{own[: word.start()]}{mask}{own[word.end() :]}"
            if not rest.strip():
                continue
            left = rest if isinstance(text, str) else (rest, text[1]) if number == 0 else (text[0], rest)
            found.append((number, word[0], left))
    return found[:MOST_WORDS]


def passes_of(model: Model, singles: Sequence[Model], text: Text) -> int:
    """The texts or pairs that :func:`explain` computes."""
    adapters = len(model.adapters)
    own = 1 + len(singles) + (adapters if adapters > 1 else 0) + (1 if adapters else 0)
    return own + len(masked_words(text, model.mask_token))


def _answer(model: Model, text: Text, without: str | None = None) -> list[dict[str, Any]]:
    (predicted,) = model.predict([text], without=without)
    return listed(predicted)


def listed(predicted: Predicted, transform: Transform = "softmax", top_k: int | None = None) -> list[dict[str, Any]]:
    """``{"label", "score"}`` of the ``top_k`` highest labels, or of all; equal ones in the task's order.

    Args:
        transform: softmax: probabilities, or the score; none: the head's outputs; sigmoid: of each output. If a head
            gives one output for two classes, the second class gets it and the first its negative.
    """
    numbers = dict(predicted.probabilities) if predicted.score is None else {_SCORE: predicted.score}
    if transform != "softmax":
        outputs = predicted.outputs
        if len(outputs) < len(numbers):
            first, second = numbers.values()
            for_first = (first - second) * outputs[0] > 0  # as a cosine, where similar texts are the first class
            outputs = (outputs[0], -outputs[0]) if for_first else (-outputs[0], outputs[0])
        if transform == "sigmoid":
            outputs = tuple((1 + math.tanh(output / 2)) / 2 for output in outputs)
        numbers = dict(zip(numbers, outputs, strict=True))
    ranked = sorted(numbers.items(), key=lambda item: -item[1])[:top_k]
    return [{"label": label, "score": score} for label, score in ranked]


def _input_shares(table: pd.DataFrame, adapters: Sequence[str]) -> dict[str, Any]:
    layers = []
    for (layer, site), part in table.groupby(["layer", "site"]):
        shares = part.pivot(index="position", columns="adapter", values="share")[list(adapters)].round(6)
        layers.append({"layer": layer, "site": site, "shares": shares.to_numpy().tolist()})
    tokens = table.drop_duplicates("position").sort_values("position")["token"].tolist()
    return {"tokens": tokens, "layers": layers}
