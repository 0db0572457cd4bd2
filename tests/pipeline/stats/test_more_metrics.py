"""Further metrics agree with scikit-learn and SciPy, and their tests seldom find what is not there."""

from typing import get_args

import numpy as np
import pytest
from scipy.stats import spearmanr
from sklearn.metrics import balanced_accuracy_score, cohen_kappa_score, f1_score, matthews_corrcoef

from pipeline.data.labels import METRICS_OF, Metric, as_sets
from pipeline.data.tasks import Task
from pipeline.stats.metrics import METRICS, best_threshold_of_labels, class_scores, score
from pipeline.stats.paired import paired_difference, score_interval
from pipeline.system.errors import PipelineError

ADDED: list[Metric] = ["balanced-accuracy", "macro-f1", "matthews", "kappa", "spearman"]


@pytest.mark.filterwarnings("ignore:y_pred contains classes not in y_true")
@pytest.mark.parametrize("classes", [2, 3, 9])
@pytest.mark.parametrize("seed", range(5))
def test_scores_of_classes_agree_with_sklearn(seed: int, classes: int) -> None:
    generator = np.random.default_rng(seed)
    labels, drawn = generator.integers(0, classes, (2, 40))
    predictions = np.where(generator.random(40) < 0.6, labels, drawn)
    assert score("accuracy", predictions, labels) == (predictions == labels).mean()
    assert score("macro-f1", predictions, labels) == pytest.approx(f1_score(labels, predictions, average="macro"))
    assert score("matthews", predictions, labels) == pytest.approx(matthews_corrcoef(labels, predictions))
    assert score("kappa", predictions, labels) == pytest.approx(cohen_kappa_score(labels, predictions))
    assert score("balanced-accuracy", predictions, labels) == pytest.approx(
        balanced_accuracy_score(labels, predictions)
    )


def draw_labels(seed: int, rows: int = 40) -> tuple[np.ndarray, np.ndarray]:
    """Labels and noisy outputs (rows, 5): a class without rows, and rows without labels."""
    generator = np.random.default_rng(seed)
    labels = generator.random((rows, 5)) < [0.5, 0.3, 0.1, 0.1, 0.0]
    return labels, generator.normal(2.0 * labels - 1.5, 1.0)


@pytest.mark.parametrize("seed", range(5))
def test_scores_of_label_sets_agree_with_sklearn(seed: int) -> None:
    labels, outputs = draw_labels(seed)
    right, guesses = as_sets(labels), as_sets(outputs > 0)
    assert (~labels).all(axis=1).any()
    for metric in METRICS_OF["labels"]:
        expected = f1_score(labels, outputs > 0, average=metric.removesuffix("-f1"), zero_division=np.nan)
        assert score(metric, guesses, right) == pytest.approx(expected)
        assert METRICS[metric].rows(np.stack([guesses, right]), right).mean(axis=-1) == pytest.approx([expected, 1])
        low, high = score_interval(metric, guesses, right)
        assert low < expected < high
        none = as_sets(np.zeros((40, 5)))
        assert score(metric, none, none) == score(metric, none, right) == 0
        # No other threshold does better, and the interval of a system against itself is empty.
        best = best_threshold_of_labels(outputs, right, metric)
        values = [score(metric, as_sets(outputs > at), right) for at in np.linspace(-4, 4, 200)]
        assert score(metric, as_sets(outputs > best), right) >= max(values)
        assert paired_difference(metric, [guesses], [guesses], right).comparison().verdict == "not significant"
    per_class = f1_score(labels, outputs > 0, average=None, zero_division=np.nan)
    found = class_scores(guesses, right, "abcde")
    assert [one.f1 for one in found] == pytest.approx([None if np.isnan(f1) else f1 for f1 in per_class])
    assert [one.rows for one in found] == labels.sum(axis=0).tolist()


@pytest.mark.filterwarnings("ignore:y_pred contains classes not in y_true", "ignore:A single label was found")
@pytest.mark.parametrize(("predicted", "label"), [(0, [0, 1, 2]), (2, [0, 1, 1]), (1, [1, 1, 1])])
def test_a_system_with_one_answer_is_scored_as_sklearn_does(predicted: int, label: list[int]) -> None:
    labels, predictions = np.array(label), np.full(3, predicted)
    assert score("macro-f1", predictions, labels) == pytest.approx(f1_score(labels, predictions, average="macro"))
    assert score("matthews", predictions, labels) == score("kappa", predictions, labels) == 0
    assert score("balanced-accuracy", predictions, labels) == pytest.approx(
        balanced_accuracy_score(labels, predictions)
    )


@pytest.mark.parametrize("metric", [metric for metric in ADDED if metric in METRICS_OF["classes"]])
def test_what_rows_add_is_the_jackknifes_and_its_error_the_bootstraps(metric: Metric) -> None:
    generator = np.random.default_rng(0)
    labels = generator.choice(3, 300, p=[0.6, 0.3, 0.1])
    systems = np.where(generator.random((2, 300)) < 0.7, labels, generator.integers(0, 3, (2, 300)))
    score_of, rows = METRICS[metric].score, METRICS[metric].rows(systems, labels)
    for system, own in zip(systems, rows, strict=True):
        left = [score_of(np.delete(system, row), np.delete(labels, row)) for row in range(300)]
        pseudovalues = 300 * score_of(system, labels) - 299 * np.array(left)
        np.testing.assert_allclose(own - own.mean(), pseudovalues - pseudovalues.mean(), atol=1e-9)
    samples = generator.integers(0, 300, (1000, 300))
    differences = [np.subtract(*(score_of(system[drawn], labels[drawn]) for system in systems)) for drawn in samples]
    assert np.subtract(*rows).std(ddof=1) / np.sqrt(300) == pytest.approx(np.std(differences), rel=0.08)


@pytest.mark.parametrize("decimals", [9, 0])
def test_spearman_agrees_with_scipy_with_and_without_ties(decimals: int) -> None:
    labels, noise = np.random.default_rng(0).normal(0, 2, (2, 200)).round(decimals)
    assert score("spearman", labels + noise, labels) == pytest.approx(spearmanr(labels + noise, labels).statistic)
    assert score("spearman", np.exp(labels), labels) == pytest.approx(1)
    assert score("spearman", np.full(200, 0.1), labels) == 0


def equal_systems(metric: Metric, seeds: int, trial: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Two systems (S, B) of the same quality, whose errors agree more than chance, and labels (B,)."""
    generator = np.random.default_rng(trial)
    if metric in METRICS_OF["classes"]:
        labels = generator.choice(4, 120, p=[0.5, 0.3, 0.15, 0.05])
        right = generator.random((2, seeds, 120)) < 0.4 + 0.6 * generator.random(120)
        ours, theirs = np.where(right, labels, generator.integers(0, 4, (2, seeds, 120)))
        return ours, theirs, labels
    labels, shared = generator.normal(size=(2, 120))
    ours, theirs = labels + shared + generator.normal(size=(2, seeds, 120))
    return np.exp(ours) if metric == "spearman" else 3 * ours + 7, theirs, labels


@pytest.mark.covering(1)
@pytest.mark.parametrize("seeds", [1, 3])
@pytest.mark.parametrize("metric", ["accuracy", "pearson", *ADDED])
def test_of_200_pairs_of_equal_systems_few_are_called_different(metric: Metric, seeds: int) -> None:
    # At level 0.05 5 % are expected; 8 % are two standard deviations more.
    different = 0
    for trial in range(200):
        ours, theirs, labels = equal_systems(metric, seeds, trial)
        test = paired_difference(metric, list(ours), list(theirs), labels)
        different += test.comparison().significant
    assert different <= 16


@pytest.mark.parametrize("metric", ADDED)
def test_a_task_takes_the_metrics_of_its_kind(metric: Metric) -> None:
    task = {"name": "mood", "text": ["text"], "label": "label", "metric": metric}
    kinds = {"classes": {"classes": ["bad", "good"]}, "score": {"range": [0, 5]}}
    for kind, values in kinds.items():
        if metric in METRICS_OF[kind]:
            assert Task.parse({**task, "kind": kind, **values}, "mood").metric == metric
        else:
            with pytest.raises(PipelineError, match=f"metric: use .* for kind '{kind}'"):
                Task.parse({**task, "kind": kind, **values}, "mood")


# What rows add to a metric.


def systems(metric: Metric, sample: int, rows: int = 60) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Predictions (1, B) of two systems and labels (B,)."""
    generator = np.random.default_rng(sample)
    if metric in METRICS_OF["classes"]:
        labels = generator.integers(0, 3, rows).astype(float)
        ours, theirs = (np.where(generator.random((1, rows)) < share, labels, 1.0) for share in (0.8, 0.6))
        return ours, theirs, labels
    labels = generator.normal(size=rows)
    ours, theirs = labels + generator.normal(size=(2, 1, rows))
    return ours, theirs, labels


def test_every_name_has_a_measure_and_belongs_to_a_kind_of_task() -> None:
    names = {name for metrics in METRICS_OF.values() for name in metrics}
    assert sorted(names) == sorted(METRICS) == sorted(get_args(Metric))


@pytest.mark.parametrize("metric", METRICS)
def test_the_best_score_is_1_and_none_is_below_the_worst(metric: Metric) -> None:
    for seed in range(1, 20):
        ours, _, labels = systems(metric, seed)
        assert score(metric, labels, labels) == pytest.approx(1)
        assert METRICS[metric].worst <= score(metric, ours[0], labels) < 1
    assert METRICS[metric].normalised(METRICS[metric].worst) == 0
    assert METRICS[metric].normalised(1) == 1


@pytest.mark.parametrize("metric", METRICS)
def test_what_rows_add_has_the_score_as_its_mean_and_varies_between_samples_as_the_score_does(metric: Metric) -> None:
    scores, errors = [], []
    for sample in range(400):
        ours, theirs, labels = systems(metric, sample, rows=150)
        rows = METRICS[metric].rows(np.stack([ours, theirs]), labels)
        assert rows.shape == (2, 1, 150)
        scores.append([METRICS[metric].score(values[0], labels) for values in (ours, theirs)])
        np.testing.assert_allclose(rows.mean(axis=-1)[:, 0], scores[-1], atol=1e-9)
        errors.append(np.subtract(*rows[:, 0]).std(ddof=1) / np.sqrt(150))
    assert np.mean(errors) == pytest.approx(np.std(np.subtract(*np.transpose(scores)), ddof=1), rel=0.12)
