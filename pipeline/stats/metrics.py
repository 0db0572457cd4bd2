"""The metrics. Everything that sets one apart from another stands in ``METRICS``.

Scores are computed over a whole split at once: a mean of Pearson over batches is not Pearson. Higher is better, and 1
is best, for every metric.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
from scipy import stats

from pipeline.data.metric_names import Metric


@dataclass(frozen=True)
class Measure:
    """A metric: its score, and what each row adds to it, by which two systems are compared."""

    score: Callable[[np.ndarray, np.ndarray], float]  # of predictions (B,) and labels (B,)
    rows: Callable[[np.ndarray, np.ndarray], np.ndarray]
    """(..., B) from predictions (..., B) and labels (B,): numbers whose mean is the score and varies between samples of
    rows as the score does, to first order (its influence function; Hampel 1974)."""
    worst: float = 0.0  # the lowest score there is; the highest is 1
    is_correlation: bool = False
    """Its interval is that of Fisher's z; otherwise t's, of what each row adds."""

    def normalised(self, value: float) -> float:
        """The score brought to 0..1, which is (r + 1) / 2 for a correlation."""
        return (value - self.worst) / (1 - self.worst)


def accuracy(predictions: np.ndarray, labels: np.ndarray) -> float:
    """The share of predictions (B,) that are their labels (B,)."""
    return float(np.mean(predictions == labels))


def _class_counts(predictions: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """For each of C classes whether a row is predicted rightly as it, is predicted as it, and is it: (3C, ..., B).

    Predictions are (..., B) and labels (B,). A class that occurs in neither is not counted.
    """
    classes = np.unique(np.concatenate([predictions.ravel(), labels]))
    predicted = predictions == classes.reshape(-1, *[1] * predictions.ndim)
    true = np.broadcast_to(labels == classes.reshape(-1, *[1] * predictions.ndim), predicted.shape)
    return np.concatenate([predicted & true, predicted, true]).astype(float)


def _balanced_accuracy_of(sums: np.ndarray) -> np.ndarray:
    """Mean recall over the classes that occur in the labels (Brodersen et al. 2010), from sums (3C, ...) of counts."""
    right, _, true = np.split(sums, 3)
    return (right / np.maximum(true, 1)).sum(axis=0) / np.maximum((true > 0).sum(axis=0), 1)


def _macro_f1_of(sums: np.ndarray) -> np.ndarray:
    """Mean over classes of F1 = 2 right / (predicted + true), from sums (3C, ...) of class counts.

    A class that is neither predicted nor true is left out of the mean, as scikit-learn does.
    """
    right, predicted, true = np.split(sums, 3)
    either = predicted + true
    return (2 * right / np.maximum(either, 1)).sum(axis=0) / (either > 0).sum(axis=0)


def _matthews_of(sums: np.ndarray) -> np.ndarray:
    """Matthews' correlation of K classes (Gorodkin 2004), from sums (3C, ...) of class counts.

    ``(c n - sum_k p_k t_k) / sqrt((n^2 - sum_k p_k^2) (n^2 - sum_k t_k^2))`` with c rows of n right, p_k predicted as
    class k and t_k of it; 0 where it is undefined, because all predictions or all labels are equal.
    """
    right, predicted, true = np.split(sums, 3)
    rows = true.sum(axis=0)
    covariance = right.sum(axis=0) * rows - (predicted * true).sum(axis=0)
    variances = (rows**2 - (predicted**2).sum(axis=0)) * (rows**2 - (true**2).sum(axis=0))
    return np.where(variances == 0, 0, covariance / np.sqrt(np.where(variances == 0, 1, variances)))


def _kappa_of(sums: np.ndarray) -> np.ndarray:
    """Cohen's kappa (1960), agreement beyond chance, from sums (3C, ...) of class counts.

    ``(c n - sum_k p_k t_k) / (n^2 - sum_k p_k t_k)`` with the numbers of :func:`_matthews_of`; 0 where it is undefined.
    """
    right, predicted, true = np.split(sums, 3)
    rows, chance = true.sum(axis=0), (predicted * true).sum(axis=0)
    most = rows**2 - chance
    return np.where(most == 0, 0, (right.sum(axis=0) * rows - chance) / np.where(most == 0, 1, most))


def _jackknifed(
    score_of: Callable[[np.ndarray], np.ndarray], predictions: np.ndarray, labels: np.ndarray
) -> np.ndarray:
    """What each row adds to a score of class counts: what the score loses without it, times B - 1 (Tukey 1958)."""
    counts = _class_counts(predictions, labels)
    sums = counts.sum(axis=-1, keepdims=True)
    whole = score_of(sums)
    lost = (len(labels) - 1) * (whole - score_of(sums - counts))
    return whole + lost - lost.mean(axis=-1, keepdims=True)


def _of_counts(
    score_of: Callable[[np.ndarray], np.ndarray], worst: float = 0.0, is_correlation: bool = False
) -> Measure:
    """The measure that is a function of class counts."""
    return Measure(
        lambda predictions, labels: float(score_of(_class_counts(predictions, labels).sum(axis=-1))),
        partial(_jackknifed, score_of),
        worst,
        is_correlation,
    )


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


def _pearson_rows(predictions: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """``r + x t - r (x^2 + t^2) / 2`` with standardised predictions x and labels t (Devlin et al. 1975)."""
    x, t = _standardised(predictions), _standardised(labels)
    products = x * t
    r = products.mean(axis=-1, keepdims=True)
    return r + products - r * (x**2 + t**2) / 2


def spearman(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Pearson's r of the ranks; equal values share their mean rank."""
    return pearson(stats.rankdata(predictions), stats.rankdata(labels))


def _spearman_rows(predictions: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """As Pearson's of the ranks, and what a row adds by moving the ranks of the others (Croux & Dehon 2010).

    Row i adds ``k_ij`` to the rank of row j: 1 where x_j lies above x_i, 1/2 where they are equal.
    """
    ranks, true = stats.rankdata(predictions, axis=-1), stats.rankdata(labels)
    moved = _moved(ranks, _standardised(true)) + _moved(np.broadcast_to(true, ranks.shape), _standardised(ranks))
    return _pearson_rows(ranks, true) + moved


def _moved(ranks: np.ndarray, others: np.ndarray) -> np.ndarray:
    """``sum_j k_ij others_j / s`` less its mean over i, (..., B), for ranks with deviation s and others (..., B)."""
    others = np.broadcast_to(others, ranks.shape)
    order = np.argsort(ranks, axis=-1, kind="stable")
    ordered, weights = np.take_along_axis(ranks, order, -1), np.take_along_axis(others, order, -1)
    below = np.concatenate([np.zeros((*ranks.shape[:-1], 1)), weights.cumsum(axis=-1)], axis=-1)
    moved = np.empty(ranks.shape)
    for index in np.ndindex(ranks.shape[:-1]):
        first, last = (np.searchsorted(ordered[index], ranks[index], side) for side in ("left", "right"))
        sums = below[index]
        moved[index] = sums[-1] - (sums[first] + sums[last]) / 2
    deviation = ranks.std(axis=-1, keepdims=True)
    moved = moved / np.where(deviation == 0, np.inf, deviation)
    return moved - moved.mean(axis=-1, keepdims=True)


METRICS: Mapping[Metric, Measure] = {
    "accuracy": Measure(accuracy, lambda predictions, labels: (predictions == labels).astype(float)),
    "balanced-accuracy": _of_counts(_balanced_accuracy_of),
    "macro-f1": _of_counts(_macro_f1_of),
    "matthews": _of_counts(_matthews_of, worst=-1.0, is_correlation=True),
    "kappa": _of_counts(_kappa_of, worst=-1.0),
    "pearson": Measure(pearson, _pearson_rows, worst=-1.0, is_correlation=True),
    "spearman": Measure(spearman, _spearman_rows, worst=-1.0, is_correlation=True),
}


@cache
def load_metric(metric: Metric) -> Any:
    """The metric as an :class:`evaluate.Metric`, for other programs that use its tools (``combine``, ``evaluator``).

    It is part of the Python interface (``docs/python.md``), and nothing here calls it. Ours because
    ``evaluate.load(name)`` downloads code from the Hub. Its numbers are those of :func:`score`.
    """
    # Here, not above: evaluate takes six seconds to import, and no command needs it.
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
        raise ValueError("predictions contain NaN or infinity")
    return METRICS[metric].score(predictions.astype(np.float64), labels.astype(np.float64))


THRESHOLDS = 512
"""Most thresholds that :func:`best_threshold` tries."""


_BELOW = 1e-3
"""By so much is a threshold below all values, which are cosines in fp32."""


def best_threshold(values: np.ndarray, labels: np.ndarray, metric: Metric) -> float:
    """The threshold above which ``values`` (B,) are class 1 that scores best against ``labels`` (B,) of 0 and 1.

    0, what lies half-way between neighbouring values, and what makes all of them one class are tried; of many values,
    evenly spaced ones. Of equally good thresholds it is the one nearest to 0.
    """
    ordered = np.unique(values.astype(np.float64))
    between = (ordered[1:] + ordered[:-1]) / 2
    places = np.linspace(0, len(between) - 1, min(len(between), THRESHOLDS)).round().astype(int)
    all_of_one = [float(ordered[0]) - _BELOW, float(ordered[-1])]
    tried = sorted([0.0, *between[places].tolist(), *all_of_one], key=lambda threshold: (abs(threshold), threshold))
    return max(tried, key=lambda threshold: METRICS[metric].score((values > threshold).astype(np.int64), labels))


def overall(scores: Mapping[str, float], metrics: Mapping[str, Metric]) -> tuple[float, float]:
    """The two overall scores in use: the plain mean, and the mean of scores brought to 0..1, (r + 1) / 2 for r."""
    normalised = [METRICS[metrics[target]].normalised(value) for target, value in scores.items()]
    return float(np.mean(list(scores.values()))), float(np.mean(normalised))
