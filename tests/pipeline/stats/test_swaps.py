"""Every metric's paired test agrees with scoring the swapped predictions anew."""

from collections.abc import Callable
from typing import get_args

import numpy as np
import pytest
from scipy import stats

from pipeline.stats.metrics import METRICS, pearson, score
from pipeline.stats.names import METRICS_OF, Metric
from pipeline.stats.paired import Resampled, resample_paired

RESAMPLES = 2000
Score = Callable[[np.ndarray, np.ndarray], float]


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


def recomputed(score: Score, ours: np.ndarray, theirs: np.ndarray, labels: np.ndarray) -> Resampled:
    """Score the swapped predictions anew in each resample."""

    def difference(swap: np.ndarray) -> float:
        systems = np.where(swap, theirs, ours), np.where(swap, ours, theirs)
        first, second = (np.mean([score(values, labels) for values in system]) for system in systems)
        return float(first - second)

    swaps = np.random.default_rng([0, 0]).integers(0, 2, (RESAMPLES, len(labels)), dtype=np.uint8)
    return Resampled(difference(np.zeros(len(labels))), np.array([difference(swap) for swap in swaps]))


@pytest.mark.parametrize("seeds", [1, 3])
@pytest.mark.parametrize("metric", METRICS)
def test_a_metrics_own_test_agrees_with_scoring_every_resample(metric: Metric, seeds: int) -> None:
    ours, theirs, labels = systems(metric, seeds)
    by_hand = METRICS[metric].score
    if metric in METRICS_OF["score"]:
        # Swaps are of values, or ranks, on one scale.
        of = {"pearson": np.asarray, "spearman": lambda x: stats.rankdata(x, axis=-1)}[metric]
        ours, theirs, by_hand = *(stats.zscore(of(x), axis=1) for x in (ours, theirs)), lambda x, t: pearson(x, of(t))
    slow = recomputed(by_hand, ours, theirs, labels)
    fast = resample_paired(metric, list(ours), list(theirs), labels, resamples=RESAMPLES)
    assert fast.difference == pytest.approx(slow.difference, abs=1e-12)
    if metric == "accuracy":  # draws its swaps otherwise
        assert fast.null.mean() == pytest.approx(0, abs=0.01)
        assert fast.null.std() == pytest.approx(slow.null.std(), rel=0.08)
    else:
        assert fast.null == pytest.approx(slow.null, abs=1e-9)
