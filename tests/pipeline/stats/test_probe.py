"""The linear probe: what it can read, and that it is not fooled by what it has seen."""

import numpy as np
import pytest
from sklearn.linear_model import Ridge
from sklearn.preprocessing import StandardScaler

from pipeline.stats.metrics import score
from pipeline.stats.names import Metric
from pipeline.stats.probe import LEAST, explained, explained_rows, explains_more, most_fitting, probe

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
    assert explained(VECTORS[:LEAST], np.zeros(LEAST), 2 if name == "quora" else None) == 0


@pytest.mark.parametrize(("right", "best"), [(0.9, "good"), (0.71, None)])
def test_only_what_is_shown_to_be_better_than_the_bare_backbone_is_chosen(right: float, best: str | None) -> None:
    """The bare backbone gets 70 % right, and another adapter fewer."""
    wanted, place = np.arange(300) % 2, RNG.permutation(300)

    def predictions(share: float) -> np.ndarray:
        return np.where(place < 300 * share, wanted, 1 - wanted)

    probes = {"good": predictions(right), "poor": predictions(0.6)}
    assert most_fitting("accuracy", probes, predictions(0.7), wanted) == best


@pytest.mark.parametrize("classes", [2, None])
def test_the_explained_variance_is_that_of_rows_left_out_one_by_one(classes: int | None) -> None:
    vectors = StandardScaler().fit_transform(RNG.normal(size=(40, 12)))
    strength = vectors[:, 0] + RNG.normal(size=40)
    wanted = strength if classes is None else (strength > 0).astype(int)
    targets = wanted[:, None] if classes is None else np.eye(2)[wanted]
    errors = []
    for alpha in np.logspace(0, 5, 6):
        model = Ridge(alpha=alpha)
        rest = [np.arange(40) != row for row in range(40)]
        predictions = [model.fit(vectors[kept], targets[kept]).predict(vectors[~kept])[0] for kept in rest]
        errors.append(((targets - np.reshape(predictions, targets.shape)) ** 2).sum(axis=1))
    best, variance = min(errors, key=np.sum), ((targets - targets.mean(axis=0)) ** 2).sum()
    assert explained(vectors, wanted, classes) == pytest.approx(1 - best.sum() / variance)
    # The penalty is that of the probe, not one for each row.
    assert explained_rows(vectors, wanted, classes) == pytest.approx(1 - 40 * best / variance)


def test_it_tells_probes_apart_that_all_vote_for_the_largest_class() -> None:
    wanted = (np.arange(200) % 10 == 0).astype(int)
    nothing = RNG.normal(size=(200, 8))
    something = nothing + np.outer(wanted, RNG.normal(size=8))
    assert explained(nothing, wanted, 2) < 0.05 < 0.1 < explained(something, wanted, 2) <= 1


@pytest.mark.parametrize(
    ("gain", "noise", "family", "more"),
    [(0.1, 0.1, 1, True), (0.1, 0.1, 10**9, False), (0.1, 3.0, 1, False), (-0.1, 0.1, 1, False), (0.0, 0.0, 1, False)],
)
def test_more_is_explained_only_where_rows_agree(gain: float, noise: float, family: int, more: bool) -> None:
    reference = np.random.default_rng(0).normal(size=50)
    assert explains_more(reference + gain + noise * np.random.default_rng(1).normal(size=50), reference, family) is more
