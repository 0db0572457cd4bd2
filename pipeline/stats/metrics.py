"""The metrics. Everything that sets one apart from another stands in ``METRICS``.

Scores are computed over a whole split at once: a mean of Pearson over batches is not Pearson. Higher is better, and 1
is best, for every metric.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from scipy import stats

from pipeline.stats.names import Metric


@dataclass(frozen=True)
class Prediction:
    """Predictions of a split, row for row: class or unclipped score (B,), and for classes probabilities (B, C)."""

    values: np.ndarray
    probabilities: np.ndarray | None


@dataclass(frozen=True)
class Measure:
    """A metric: its score, and how the score follows from sums over rows, by which two systems are compared."""

    score: Callable[[np.ndarray, np.ndarray], float]  # of predictions (B,) and labels (B,)
    parts: Callable[[np.ndarray, np.ndarray], np.ndarray]
    """What each row adds, (K, ..., B), from predictions (..., B) and labels (B,)."""
    of_sums: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None
    """Scores (R, S) from labels and sums (R, K, S) of the parts; None: the mean of a single part (K = 1)."""
    worst: float = 0.0  # the lowest score there is; the highest is 1

    def normalised(self, value: float) -> float:
        """The score brought to 0..1, which is (r + 1) / 2 for a correlation."""
        return (value - self.worst) / (1 - self.worst)


def accuracy(predictions: np.ndarray, labels: np.ndarray) -> float:
    return float(np.mean(predictions == labels))


def _class_counts(predictions: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """For each of C classes whether a row is predicted rightly as it, is predicted as it, and is it: (3C, ..., B).

    Predictions are (..., B) and labels (B,). A class that occurs in neither is not counted.
    """
    classes = np.unique(np.concatenate([predictions.ravel(), labels]))
    predicted = predictions == classes.reshape(-1, *[1] * predictions.ndim)
    true = np.broadcast_to(labels == classes.reshape(-1, *[1] * predictions.ndim), predicted.shape)
    return np.concatenate([predicted & true, predicted, true]).astype(float)


def _macro_f1_of(_: np.ndarray, sums: np.ndarray) -> np.ndarray:
    """Mean over classes of F1 = 2 right / (predicted + true), (R, S), from sums (R, 3C, S) of class counts.

    A class that is neither predicted nor true is left out of the mean, as scikit-learn does.
    """
    right, predicted, true = np.split(sums, 3, axis=1)
    either = predicted + true
    return (2 * right / np.maximum(either, 1)).sum(axis=1) / (either > 0).sum(axis=1)


def _matthews_of(_: np.ndarray, sums: np.ndarray) -> np.ndarray:
    """Matthews' correlation of K classes (Gorodkin 2004), (R, S), from sums (R, 3C, S) of class counts.

    ``(c n - sum_k p_k t_k) / sqrt((n^2 - sum_k p_k^2) (n^2 - sum_k t_k^2))`` with c rows of n right, p_k predicted as
    class k and t_k of it; 0 where it is undefined, because all predictions or all labels are equal.
    """
    right, predicted, true = np.split(sums, 3, axis=1)
    rows = true.sum(axis=1)
    covariance = right.sum(axis=1) * rows - (predicted * true).sum(axis=1)
    variances = (rows**2 - (predicted**2).sum(axis=1)) * (rows**2 - (true**2).sum(axis=1))
    return np.where(variances == 0, 0, covariance / np.sqrt(np.where(variances == 0, 1, variances)))


def macro_f1(predictions: np.ndarray, labels: np.ndarray) -> float:
    return float(_macro_f1_of(labels, _class_counts(predictions, labels).sum(axis=-1)[None, :, None]).item())


def matthews(predictions: np.ndarray, labels: np.ndarray) -> float:
    return float(_matthews_of(labels, _class_counts(predictions, labels).sum(axis=-1)[None, :, None]).item())


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


def _correlation(labels: np.ndarray, sums: np.ndarray) -> np.ndarray:
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
    "accuracy": Measure(accuracy, lambda predictions, labels: (predictions == labels)[None].astype(float)),
    "macro-f1": Measure(macro_f1, _class_counts, _macro_f1_of),
    "matthews": Measure(matthews, _class_counts, _matthews_of, worst=-1.0),
    "pearson": Measure(pearson, _moments, _correlation, worst=-1.0),
    "spearman": Measure(spearman, _rank_moments, _correlation, worst=-1.0),
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
    """The score of predictions (B,) against labels (B,); a ValueError if a prediction is not a finite number."""
    if not np.isfinite(predictions).all():
        raise ValueError("predictions hold NaN or infinity")
    return float(load_metric(metric).compute(predictions=predictions, references=labels)[metric])


def overall(scores: Mapping[str, float], metrics: Mapping[str, Metric]) -> tuple[float, float]:
    """The two overall scores in use: the plain mean, and the mean of scores brought to 0..1, (r + 1) / 2 for r."""
    normalised = [METRICS[metrics[target]].normalised(value) for target, value in scores.items()]
    return float(np.mean(list(scores.values()))), float(np.mean(normalised))
