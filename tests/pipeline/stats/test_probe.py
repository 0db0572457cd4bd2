"""The linear probe: what it can read, and that it is not fooled by what it has seen."""

import numpy as np
import pytest

from pipeline.stats.metrics import score
from pipeline.stats.names import Metric
from pipeline.stats.probe import LEAST, most_fitting, probe

METRIC: dict[str, Metric] = {"quora": "accuracy", "sts": "pearson"}
RNG = np.random.default_rng(0)
VECTORS = RNG.normal(size=(400, 32))
DIRECTION = RNG.normal(size=32)


def probe_score(vectors: np.ndarray, wanted: np.ndarray, name: str) -> float:
    classes = 2 if name == "quora" else None
    return score(METRIC[name], probe(vectors, wanted, classes), wanted)


def labels(name: str, vectors: np.ndarray) -> np.ndarray:
    strength = vectors @ DIRECTION
    if name == "sts":
        return strength
    return (strength > 0).astype(int)


@pytest.mark.parametrize("name", ["quora", "sts"])
def test_what_is_linear_is_read(name: str) -> None:
    assert probe_score(VECTORS, labels(name, VECTORS), name) > 0.85


@pytest.mark.parametrize(("name", "chance"), [("quora", 0.5), ("sts", 0.0)])
def test_more_numbers_than_rows_do_not_help_with_labels_that_mean_nothing(name: str, chance: float) -> None:
    vectors, wanted = RNG.normal(size=(200, 800)), labels(name, VECTORS[:200])
    assert probe_score(vectors, wanted, name) == pytest.approx(chance, abs=0.15)


def test_it_says_the_same_twice_and_in_other_units() -> None:
    wanted = labels("sts", VECTORS)
    found = probe_score(VECTORS, wanted, "sts")
    assert probe_score(VECTORS, wanted, "sts") == found
    assert probe_score(100 * VECTORS - 7, wanted, "sts") == pytest.approx(found, abs=1e-9)


@pytest.mark.parametrize("name", ["quora", "sts"])
def test_few_rows_and_labels_of_one_kind_are_no_error(name: str) -> None:
    assert 0 <= probe_score(VECTORS[:LEAST], np.zeros(LEAST), name) <= 1


@pytest.mark.parametrize(("right", "best"), [(0.9, "good"), (0.71, None)])
def test_only_what_is_shown_to_be_better_than_the_bare_backbone_is_chosen(right: float, best: str | None) -> None:
    """The bare backbone gets 70 % right, and another adapter fewer."""
    wanted, place = np.arange(300) % 2, RNG.permutation(300)

    def predictions(share: float) -> np.ndarray:
        return np.where(place < 300 * share, wanted, 1 - wanted)

    probes = {"good": predictions(right), "poor": predictions(0.6)}
    assert most_fitting("accuracy", probes, predictions(0.7), wanted) == best
