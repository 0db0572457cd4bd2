"""Scores agree with scikit-learn and SciPy."""

from typing import Any

import numpy as np
import pytest
from scipy import stats

from pipeline.stats.metrics import METRICS as MEASURES
from pipeline.stats.metrics import Metric, best_threshold, class_scores, confusion, load_metric, overall, score


@pytest.mark.parametrize("seed", range(5))
def test_correlations_agree_with_scipy(seed: int) -> None:
    generator = np.random.default_rng(seed)
    scores = generator.normal(2.5, 1, 301)
    guessed = scores + generator.normal(0, 2, 301)
    assert score("pearson", guessed, scores) == pytest.approx(stats.pearsonr(guessed, scores).statistic, abs=1e-12)


@pytest.mark.parametrize("constant", [0.0, 0.1, 3.0, -1e9])
def test_predictions_that_never_change_have_correlation_0(constant: float) -> None:
    varied = np.linspace(0, 5, 101)
    assert score("pearson", np.full(101, constant), varied) == 0
    assert score("pearson", varied, np.full(101, constant)) == 0


@pytest.mark.parametrize("metric", ["accuracy", "pearson"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_predictions_that_are_not_finite_are_never_scored(metric: Metric, bad: float) -> None:
    with pytest.raises(ValueError, match="NaN or infinity"):
        score(metric, np.array([1.0, bad]), np.array([1.0, 0.0]))


def test_the_metrics_are_evaluate_metrics() -> None:
    import evaluate

    metric = load_metric("accuracy")
    assert isinstance(metric, evaluate.Metric)
    assert metric.compute(predictions=[1.0, 0.0], references=[1.0, 1.0]) == {"accuracy": 0.5}
    # Nothing of one call is left for the next.
    assert metric.compute(predictions=[1.0], references=[1.0]) == {"accuracy": 1.0}
    metric.add_batch(predictions=[1.0, 0.0], references=[1.0, 1.0])
    metric.add_batch(predictions=[1.0, 1.0], references=[1.0, 1.0])
    assert metric.compute() == {"accuracy": 0.75}


METRICS: dict[str, Metric] = {"sst": "accuracy", "quora": "accuracy", "sts": "pearson"}


def test_both_overall_scores_are_those_that_the_papers_print() -> None:
    # Xu 2024, table 2 (test) prints the normalised one, Liu & Shen 2023, table 5 (dev) the plain one.
    _, normalised = overall({"sst": 0.548, "quora": 0.735, "sts": 0.815}, METRICS)
    assert normalised == pytest.approx(0.7302, abs=5e-5)
    plain, _ = overall({"sst": 0.518, "quora": 0.831, "sts": 0.858}, METRICS)
    assert plain == pytest.approx(0.736, abs=5e-4)


@pytest.mark.parametrize("metric", ["accuracy", "balanced-accuracy", "macro-f1", "matthews", "kappa"])
def test_no_threshold_scores_better_than_the_best(metric: Any) -> None:
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 2, 60)
    values = 0.3 * labels + generator.normal(0.6, 0.2, 60)
    best = best_threshold(values, labels, metric)

    def reached(threshold: float) -> float:
        return MEASURES[metric].score((values > threshold).astype(int), labels)

    assert reached(best) == max(map(reached, np.linspace(values.min() - 1, values.max() + 1, 401)))
    assert reached(best) > reached(0.0)


def test_a_threshold_is_moved_only_for_a_better_score() -> None:
    assert best_threshold(np.array([-0.5, 0.5, 0.9]), np.array([0, 1, 1]), "accuracy") == 0.0
    assert best_threshold(np.full(4, 0.5), np.array([0, 1, 1, 1]), "accuracy") == 0.0
    # what makes all rows one class
    assert best_threshold(np.full(4, 0.5), np.array([0, 0, 0, 1]), "accuracy") == 0.5
    values = np.float32(-np.arange(1, 6) / 10)
    assert (values > best_threshold(values, np.ones(5), "accuracy")).all()


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


def test_the_confusion_matrix_counts_true_classes_by_predicted_ones() -> None:
    found = confusion(np.array([1, 0, 0, 1, 1]), np.array([1, 0, 2, 1, 0]), 4)
    assert found == ((1, 1, 0, 0), (0, 2, 0, 0), (1, 0, 0, 0), (0, 0, 0, 0))
