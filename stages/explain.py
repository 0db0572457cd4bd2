"""What a fusion listened to for one text, what its adapters say alone, and what changes without each of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from pipeline.serving.answers import Answer
from stages.api import Model, Predicted, Text

SCORE = "score"
"""The label of the only number of a task of scores."""


@dataclass(frozen=True)
class Single:
    """The answer of one adapter by itself; its task may have other classes than the fusion's."""

    task: str
    run: str
    classes: tuple[str, ...]
    predicted: Predicted


@dataclass(frozen=True)
class Explanation:
    """The answer of a model for one text or pair and, of a fusion, what it comes from."""

    model: Model
    predicted: Predicted
    tokens: int
    """Of the whole text, before it is cut to what the model reads."""
    singles: tuple[Single, ...]
    without: dict[str, Predicted]
    """By the adapter that is left out; none of a model that mixes fewer than two."""
    shares: pd.DataFrame
    """As of :meth:`Model.explain`; empty of a model that is no fusion."""

    def mean_shares(self) -> dict[str, float]:
        """The share of each adapter, averaged over tokens, layers and sites; they add up to one."""
        return {
            name: float(self.shares.loc[self.shares["adapter"] == name, "share"].mean()) for name in self.model.adapters
        }

    def summary(self) -> dict[str, Any]:
        """All of it as JSON has it: answers as lists of label and score, shares as (tokens, adapters) by site."""
        return {
            "task": self.model.task,
            "run": self.model.run,
            "kind": self.model.kind,
            "classes": list(self.model.classes),
            "answer": answer_of(self.predicted).listed(),
            "tokens": self.tokens,
            "max_length": self.model.max_length,
            "adapters": list(self.model.adapters),
            "mean_shares": self.mean_shares(),
            "singles": [
                {
                    "task": single.task,
                    "run": single.run,
                    "same_labels": single.classes == self.model.classes,
                    "answer": answer_of(single.predicted).listed(),
                }
                for single in self.singles
            ],
            "without": [
                {"adapter": name, "answer": answer_of(predicted).listed()} for name, predicted in self.without.items()
            ],
            "inputs": [_input_summary(table, self.model.adapters) for _, table in self.shares.groupby("input")],
        }


def explain(model: Model, text: Text, singles: Sequence[Model]) -> Explanation:
    """The answer of ``model`` for ``text`` beside those of ``singles``, which read as many texts.

    Raises:
        PipelineError: the text is not what the model reads, or blank.
    """
    (predicted,) = model.predict([text])
    several = len(model.adapters) > 1
    return Explanation(
        model=model,
        predicted=predicted,
        tokens=model.lengths([text])[0],
        singles=tuple(Single(each.task, each.run, each.classes, each.predict([text])[0]) for each in singles),
        without={name: model.predict([text], without=name)[0] for name in (model.adapters if several else ())},
        shares=model.explain(text) if model.adapters else pd.DataFrame(columns=["input"]),
    )


def answer_of(predicted: Predicted) -> Answer:
    """The numbers by label.

    Of a head that gives one number for two classes, its raw one is the second class's, and its negative the first's.
    """
    if predicted.score is not None:
        return Answer({SCORE: predicted.score}, {SCORE: predicted.outputs[0]})
    outputs = predicted.outputs
    if len(outputs) == 1:
        outputs = (-outputs[0], outputs[0])
    return Answer(dict(predicted.probabilities), dict(zip(predicted.probabilities, outputs, strict=True)))


def _input_summary(table: pd.DataFrame, adapters: Sequence[str]) -> dict[str, Any]:
    tokens = table.drop_duplicates("position").sort_values("position")["token"].tolist()
    layers = [
        {
            "layer": layer,
            "site": site,
            "shares": part.pivot(index="position", columns="adapter", values="share")[list(adapters)]
            .round(6)
            .to_numpy()
            .tolist(),
        }
        for (layer, site), part in table.groupby(["layer", "site"])
    ]
    return {"tokens": tokens, "layers": layers}
