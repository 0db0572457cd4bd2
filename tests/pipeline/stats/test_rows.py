"""What rows add to a metric, by which systems are compared."""

from typing import get_args

import numpy as np
import pytest

from pipeline.data.metric_names import METRICS_OF, Metric
from pipeline.stats.metrics import METRICS, score


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
