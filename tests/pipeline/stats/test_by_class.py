"""The scores of classes add up to the metrics of the whole, and say nothing of what is not there."""

import numpy as np
import pytest

from pipeline.stats.by_class import class_scores, largest_class
from pipeline.stats.metrics import score

NAMES = tuple("abcdefghi")


def drawn(seed: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Predictions and labels, of which the last class is in neither, and the one before it only predicted."""
    generator = np.random.default_rng(seed)
    labels, others = generator.integers(0, classes - 2, 40), generator.integers(0, classes - 1, 40)
    return np.where(generator.random(40) < 0.6, labels, others), labels


@pytest.mark.parametrize("classes", [3, 5, 9])
@pytest.mark.parametrize("seed", range(5))
def test_the_metrics_of_the_whole_are_those_of_its_classes(seed: int, classes: int) -> None:
    predictions, labels = drawn(seed, classes)
    found = class_scores(predictions, labels, NAMES[:classes])
    assert [each.name for each in found] == list(NAMES[:classes])
    assert sum(each.rows for each in found) == sum(each.predicted for each in found) == 40
    assert sum(each.right for each in found) / 40 == score("accuracy", predictions, labels)
    assert sum(each.errors for each in found) == 2 * (predictions != labels).sum()
    f1 = [each.f1 for each in found if each.f1 is not None]
    assert np.mean(f1) == pytest.approx(score("macro-f1", predictions, labels))
    recall = [each.recall for each in found if each.recall is not None]
    assert np.mean(recall) == pytest.approx(score("balanced-accuracy", predictions, labels))
    for each in found:
        assert (each.recall is None) == (each.rows == 0)
        assert (each.precision is None) == (each.predicted == 0)
        assert (each.f1 is None) == (each.rows + each.predicted == 0)
        if each.precision and each.recall:
            assert each.f1 == pytest.approx(2 * each.precision * each.recall / (each.precision + each.recall))


@pytest.mark.parametrize(("metric", "value"), [("accuracy", 0.5), ("balanced-accuracy", 1 / 3), ("macro-f1", 2 / 9)])
def test_the_largest_class_is_scored_by_the_metric(metric: str, value: float) -> None:
    found = largest_class(np.array([1, 0, 2, 1, 1, 0]), NAMES, metric)  # type: ignore[arg-type]
    assert (found.name, found.score) == ("b", pytest.approx(value))
