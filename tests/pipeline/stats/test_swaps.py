"""Every metric's paired test agrees with scoring the swapped predictions anew."""

from typing import get_args

import numpy as np
import pytest
from scipy import stats

from pipeline.stats.metrics import METRICS, pearson, score
from pipeline.stats.names import METRICS_OF, Metric
from pipeline.stats.swaps import recomputed


def systems(metric: Metric, seeds: int, rows: int = 60) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Predictions (S, B) of two systems and labels (B,); scores are on one scale, as those of one method are."""
    generator = np.random.default_rng(seeds)
    if metric in METRICS_OF["classes"]:
        labels = generator.integers(0, 3, rows).astype(float)
        ours, theirs = (np.where(generator.random((seeds, rows)) < share, labels, 1.0) for share in (0.8, 0.6))
        return ours, theirs, labels
    labels = generator.normal(size=rows)
    ours, theirs = labels + generator.normal(size=(2, seeds, rows))
    return ours, theirs, labels


def test_every_name_has_a_measure_and_belongs_to_one_kind_of_task() -> None:
    names = [name for metrics in METRICS_OF.values() for name in metrics]
    assert sorted(names) == sorted(METRICS) == sorted(get_args(Metric))


@pytest.mark.parametrize("metric", METRICS)
def test_the_best_score_is_1_and_none_is_below_the_worst(metric: Metric) -> None:
    for seed in range(1, 20):
        ours, _, labels = systems(metric, seed)
        assert score(metric, labels, labels) == pytest.approx(1)
        assert METRICS[metric].worst <= score(metric, ours[0], labels) < 1
    assert METRICS[metric].normalised(METRICS[metric].worst) == 0
    assert METRICS[metric].normalised(1) == 1


@pytest.mark.parametrize("seeds", [1, 3])
@pytest.mark.parametrize("metric", METRICS)
def test_a_metrics_own_test_agrees_with_scoring_every_resample(metric: Metric, seeds: int) -> None:
    ours, theirs, labels = systems(metric, seeds)
    by_hand = METRICS[metric].score
    if metric in METRICS_OF["score"]:
        # Swaps are of values, or ranks, on one scale.
        of = {"pearson": np.asarray, "spearman": lambda x: stats.rankdata(x, axis=-1)}[metric]
        ours, theirs, by_hand = *(stats.zscore(of(x), axis=1) for x in (ours, theirs)), lambda x, t: pearson(x, of(t))
    slow, fast = (
        test(ours, theirs, labels, 2000, np.random.default_rng(0))
        for test in (recomputed(by_hand), METRICS[metric].randomisation)
    )
    assert fast[0] == pytest.approx(slow[0], abs=1e-12)
    if metric == "accuracy":  # draws its swaps otherwise
        assert fast[1].mean() == pytest.approx(0, abs=0.01)
        assert fast[1].std() == pytest.approx(slow[1].std(), rel=0.08)
    else:
        assert fast[1] == pytest.approx(slow[1], abs=1e-9)
