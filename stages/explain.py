"""What a fusion listened to for one text, what its adapters say alone, and what changes without each of them."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, cast

import pandas as pd

from pipeline.runs.model import Model, Predicted, Text
from stages.answers import Answer

SCORE = "score"
"""The label of the only number of a task of scores."""


class LabelScore(NamedTuple):
    label: str
    score: float


Ranked = tuple[LabelScore, ...]
"""An answer: its labels, the one with the highest score first."""


@dataclass(frozen=True)
class Single:
    """The answer of one adapter by itself; its task may have other classes than the fusion's."""

    task: str
    run: str
    classes: tuple[str, ...]
    answer: Ranked


@dataclass(frozen=True)
class SiteShares:
    """The shares of the adapters at a site: (tokens, adapters), of the last layer of CLS pooling of its first token."""

    layer: int
    site: str
    shares: list[list[float]]


@dataclass(frozen=True)
class InputShares:
    """The tokens of an input, and what they listened to at each site."""

    tokens: list[str]
    layers: list[SiteShares]

    def mean_shares(self) -> list[list[float]]:
        """(tokens, adapters), averaged over the sites that computed a token."""
        return [
            [sum(shares) / len(shares) for shares in zip(*at_sites, strict=True)]
            for token in range(len(self.tokens))
            if (at_sites := [site.shares[token] for site in self.layers if token < len(site.shares)])
        ]


@dataclass(frozen=True)
class Explanation:
    """The answer of a model for one text or pair and, of a fusion, what it comes from."""

    model: Model
    answer: Ranked
    tokens: int
    """How many the whole text has, before it is cut to what the model reads."""
    singles: tuple[Single, ...]
    without: dict[str, Ranked]
    """By the adapter that is left out; none of a model that mixes fewer than two."""
    shares: pd.DataFrame
    """As of :meth:`Model.explain`; empty of a model that is no fusion."""

    def mean_shares(self) -> dict[str, float]:
        """The share of each adapter, averaged over tokens, layers and sites; they add up to one."""
        return {
            name: float(self.shares.loc[self.shares["adapter"] == name, "share"].mean()) for name in self.model.adapters
        }

    def inputs(self) -> list[InputShares]:
        """The shares by input: one, or of a siamese pair two; none of a model that is no fusion."""
        return [_input_shares(table, self.model.adapters) for _, table in self.shares.groupby("input")]

    def summary(self) -> dict[str, Any]:
        """All of it as JSON has it: answers as lists of label and score, shares as (tokens, adapters) by site."""
        return {
            "task": self.model.task,
            "run": self.model.run,
            "kind": self.model.kind,
            "classes": list(self.model.classes),
            "answer": _listed(self.answer),
            "tokens": self.tokens,
            "max_length": self.model.max_length,
            "adapters": list(self.model.adapters),
            "mean_shares": self.mean_shares(),
            "singles": [
                {
                    "task": single.task,
                    "run": single.run,
                    "same_labels": single.classes == self.model.classes,
                    "answer": _listed(single.answer),
                }
                for single in self.singles
            ],
            "without": [{"adapter": name, "answer": _listed(answer)} for name, answer in self.without.items()],
            "inputs": [asdict(each) for each in self.inputs()],
        }


def explain(model: Model, text: Text, singles: Sequence[Model]) -> Explanation:
    """The answer of ``model`` for ``text`` beside those of ``singles``, which read as many texts.

    Raises:
        PipelineError: the text is not what the model reads, or blank.
    """
    several = len(model.adapters) > 1
    return Explanation(
        model=model,
        answer=_ranked(model, text),
        tokens=model.lengths([text])[0],
        singles=tuple(Single(each.task, each.run, each.classes, _ranked(each, text)) for each in singles),
        without={name: _ranked(model, text, without=name) for name in (model.adapters if several else ())},
        shares=model.explain(text) if model.adapters else pd.DataFrame(columns=["input"]),
    )


def passes_of(model: Model, singles: Sequence[Model]) -> int:
    """The forward passes of :func:`explain`."""
    adapters = len(model.adapters)
    return 1 + len(singles) + (adapters if adapters > 1 else 0) + (1 if adapters else 0)


def _ranked(model: Model, text: Text, without: str | None = None) -> Ranked:
    (predicted,) = model.predict([text], without=without)
    return tuple(LabelScore(**each) for each in answer_of(predicted).listed())


def _listed(answer: Ranked) -> list[dict[str, Any]]:
    return [each._asdict() for each in answer]


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


def _input_shares(table: pd.DataFrame, adapters: Sequence[str]) -> InputShares:
    tokens = table.drop_duplicates("position").sort_values("position")["token"].tolist()
    layers = []
    for (layer, site), part in table.groupby(["layer", "site"]):
        shares = part.pivot(index="position", columns="adapter", values="share")[list(adapters)].round(6)
        layers.append(SiteShares(cast("int", layer), cast("str", site), shares.to_numpy().tolist()))
    return InputShares(tokens, layers)
