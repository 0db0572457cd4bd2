"""A task says which of two classes is that of similar texts: the first with the key equals the second without."""

from typing import Any

import numpy as np
import pytest
import torch

from pipeline.data.tasks import Task
from pipeline.settings.recipe import Recipe
from pipeline.settings.resolve import resolve
from pipeline.system.errors import PipelineError
from pipeline.training.objectives import objective_of

RAW: dict[str, Any] = {"name": "pairs", "kind": "classes", "text": ["a", "b"], "label": "same", "metric": "accuracy"}
COSINE = Recipe.parse({"encoding": "siamese", "head": "cosine"}, "test")


def task(*classes: str, similar: str | None = None) -> Task:
    return Task.parse({**RAW, "classes": list(classes), **({"similar": similar} if similar else {})}, "task.toml")


@pytest.mark.parametrize("weights", [None, torch.tensor([0.5, 2.0])])
def test_the_first_class_with_the_key_is_as_the_second_without(weights: torch.Tensor | None) -> None:
    usual, keyed = task("nein", "ja"), task("ja", "nein", similar="ja")
    outputs, labels = torch.linspace(-0.9, 0.9, 12).unsqueeze(-1), torch.tensor([0, 1] * 6)
    flipped = None if weights is None else weights.flip(0)
    one = objective_of(usual, resolve(COSINE, usual, "fp32"), weights)
    other = objective_of(keyed, resolve(COSINE, keyed, "fp32"), flipped)
    assert torch.equal(one.loss(outputs, labels), other.loss(outputs, 1 - labels))
    assert torch.equal(one.read(outputs), other.read(outputs).flip(-1))
    told, reversed_ = one.predict(outputs), other.predict(outputs)
    assert told.probabilities is not None and reversed_.probabilities is not None
    np.testing.assert_array_equal(told.values, 1 - reversed_.values)
    np.testing.assert_array_equal(told.probabilities, reversed_.probabilities[:, ::-1])


def test_the_key_tells_runs_apart_only_where_a_cosine_reads_the_first_class_as_similar() -> None:
    plain, second, first = task("a", "b"), task("a", "b", similar="b"), task("a", "b", similar="a")
    assert plain.meaning == second.meaning == first.meaning
    for recipe in (COSINE, Recipe()):
        identities = [resolve(recipe, each, "fp32").identity for each in (plain, second, first)]
        assert identities[0] == identities[1]
        assert (identities[2] == identities[0]) == (recipe.head != "cosine")
    again = resolve(resolve(COSINE, first, "fp32"), first, "fp32")
    assert again.cosine_similar == "first"


@pytest.mark.parametrize(
    "raw",
    [
        {"classes": ["a", "b"], "similar": "c"},
        {"classes": ["a", "b", "c"], "similar": "a"},
        {"classes": ["a", "b"], "similar": "a", "text": ["a"]},
        {"kind": "score", "range": [0, 1], "metric": "pearson", "similar": "a"},
    ],
)
def test_a_class_that_is_none_is_refused(raw: dict[str, Any]) -> None:
    with pytest.raises(PipelineError, match="similar"):
        Task.parse({**RAW, **raw}, "task.toml")
