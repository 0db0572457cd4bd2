"""The metrics. Everything that sets one apart from another stands in ``METRICS``.

Scores are computed over a whole split at once: a mean of Pearson over batches is not Pearson. Higher is better, and 1
is best, for every metric.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from scipy import stats

from pipeline.stats.confusion import class_counts, macro_f1, macro_f1_of, matthews, matthews_of
from pipeline.stats.names import Metric
from pipeline.stats.swaps import Randomisation, Score, by_rows, by_sums, recomputed


@dataclass(frozen=True)
class Measure:
    """A metric: its score, and how two systems are compared by it."""

    score: Score
    """``score(predictions, labels)`` of (B,) each."""
    worst: float = 0.0
    """The lowest score there is; the highest is 1."""
    paired: Randomisation | None = None
    """Its paired test; None: recompute the score for each resample."""

    @property
    def randomisation(self) -> Randomisation:
        return self.paired or recomputed(self.score)

    def normalised(self, value: float) -> float:
        """The score brought to 0..1, which is (r + 1) / 2 for a correlation."""
        return (value - self.worst) / (1 - self.worst)


def accuracy(predictions: np.ndarray, labels: np.ndarray) -> float:
    return float(np.mean(predictions == labels))


def pearson(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Pearson's r on unclipped scores; 0 where it is undefined, because all predictions or all labels are equal."""
    if np.ptp(predictions) == 0 or np.ptp(labels) == 0:
        return 0.0
    return float(stats.pearsonr(predictions, labels).statistic)


def _standardised(values: np.ndarray) -> np.ndarray:
    """``values`` (..., B) with mean 0 and deviation 1 along the last axis."""
    # The mean of equal numbers may differ from them by rounding, so a constant is known by its range.
    constant = np.ptp(values, axis=-1, keepdims=True) == 0
    centred = np.where(constant, 0, values - values.mean(axis=-1, keepdims=True))
    return centred / np.where(constant, 1, values.std(axis=-1, keepdims=True))


def _moments(predictions: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """x, x^2 and x t of each row, (3, S, B), of standardised predictions x and labels t.

    Standardising leaves r as it is. Without it, swaps between systems of different scale would lower r for both.
    """
    x, t = _standardised(predictions), _standardised(labels)
    return np.stack([x, x**2, x * t])


def _correlation(sums: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Pearson's r from sums of :func:`_moments`; 0 where the predictions do not vary."""
    of_x, squares, products = np.moveaxis(sums / len(labels), 1, 0)
    variances = (squares - of_x**2) * np.mean(_standardised(labels) ** 2)
    constant = variances < 1e-12
    return np.where(constant, 0, products / np.sqrt(np.where(constant, 1, variances)))


def spearman(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Pearson's r of the ranks; equal values share their mean rank."""
    return pearson(stats.rankdata(predictions), stats.rankdata(labels))


def _rank_moments(predictions: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Moments of ranks within each system: swaps then compare ranks, whatever the systems' scales."""
    return _moments(stats.rankdata(predictions, axis=-1), stats.rankdata(labels))


METRICS: Mapping[Metric, Measure] = {
    "accuracy": Measure(accuracy, paired=by_rows(lambda predictions, labels: (predictions == labels).astype(float))),
    "macro-f1": Measure(macro_f1, paired=by_sums(class_counts, macro_f1_of)),
    "matthews": Measure(matthews, worst=-1.0, paired=by_sums(class_counts, matthews_of)),
    "pearson": Measure(pearson, worst=-1.0, paired=by_sums(_moments, _correlation)),
    "spearman": Measure(spearman, worst=-1.0, paired=by_sums(_rank_moments, _correlation)),
}


@cache
def load_metric(metric: Metric) -> Any:
    """The metric as an :class:`evaluate.Metric`, to be used with its tools (``combine``, ``evaluator``).

    Ours because ``evaluate.load(name)`` downloads code from the Hub.
    """
    # Here, not above: evaluate takes seconds to import, and most commands score nothing.
    import datasets
    import evaluate

    function = METRICS[metric].score
    number = datasets.Value("float64")

    class _Metric(evaluate.Metric):
        def _info(self) -> evaluate.MetricInfo:
            features = datasets.Features({"predictions": number, "references": number})
            return evaluate.MetricInfo(description=function.__doc__ or metric, citation="", features=features)

        def _build_data_dir(self) -> str:
            # The base class makes a cache folder even where everything is kept in memory, and then leaves it empty.
            return ""

        def _compute(self, predictions: Any, references: Any) -> dict[str, float]:
            return {metric: function(np.asarray(predictions), np.asarray(references))}

    return _Metric(keep_in_memory=True)


def score(metric: Metric, predictions: np.ndarray, labels: np.ndarray) -> float:
    """The score of predictions (B,) against labels (B,), higher is better.

    Raises:
        ValueError: a prediction is not a finite number.
    """
    if not np.isfinite(predictions).all():
        raise ValueError("predictions hold NaN or infinity")
    return float(load_metric(metric).compute(predictions=predictions, references=labels)[metric])


def overall(scores: Mapping[str, float], metrics: Mapping[str, Metric]) -> tuple[float, float]:
    """The two overall scores in use: the plain mean, and the mean of scores brought to 0..1, (r + 1) / 2 for r."""
    normalised = [METRICS[metrics[target]].normalised(value) for target, value in scores.items()]
    return float(np.mean(list(scores.values()))), float(np.mean(normalised))
