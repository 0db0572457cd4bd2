"""The metrics, the scores of every class, and calibration: whether a class that gets a probability of .8 is right 8
times in 10.

``METRICS`` holds everything that distinguishes the metrics. Scores are computed over a whole split at once: the mean of
Pearson's r over batches is not Pearson's r. For every metric, higher is better and 1 is best.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
from scipy import stats
from scipy.optimize import minimize_scalar

from pipeline.data.labels import (
    LEAST_TEMPERATURE,
    MOST_TEMPERATURE,
    Metric,
    Prediction,
    are_sets,
    as_computed,
    as_matrix,
    one_hot,
)


@dataclass(frozen=True)
class Measure:
    """A metric: its score, and the contribution of each row, which serves to compare systems."""

    score: Callable[[np.ndarray, np.ndarray], float]  # of predictions (B,) and labels (B,)
    rows: Callable[[np.ndarray, np.ndarray], np.ndarray]
    """(..., B) from predictions (..., B) and labels (B,): numbers whose mean is the score, and varies between samples
    of rows like the score, to first order (its influence function; Hampel 1974)."""
    worst: float = 0.0  # the lowest possible score; the highest is 1
    is_correlation: bool = False
    """Whether its interval uses Fisher's z; otherwise it is a t interval of the rows' contributions."""

    def normalised(self, value: float) -> float:
        """The score rescaled to 0..1: (r + 1) / 2 for a correlation."""
        return (value - self.worst) / (1 - self.worst)


def accuracy(predictions: np.ndarray, labels: np.ndarray) -> float:
    """The share of predictions (B,) that equal their labels (B,)."""
    return float(np.mean(predictions == labels))


def _class_counts(predictions: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """For each of C classes, whether a row is rightly predicted as it, is predicted as it, and belongs to it.

    Returns (3C, ..., B) for predictions (..., B) and labels (B,), class numbers or label sets. Leaves out class numbers
    that occur in neither.
    """
    if are_sets(labels):
        predicted, true = (np.moveaxis(as_matrix(values), -1, 0) for values in (predictions, labels))
    else:
        classes = np.unique(np.concatenate([predictions.ravel(), labels]))
        predicted, true = (values == classes.reshape(-1, *[1] * values.ndim) for values in (predictions, labels))
    true = np.broadcast_to(true.reshape(len(true), *[1] * (predicted.ndim - 2), -1), predicted.shape)
    return np.concatenate([predicted & true, predicted, true]).astype(float)


def _balanced_accuracy_of(sums: np.ndarray) -> np.ndarray:
    """Mean recall over the classes that occur in the labels (Brodersen et al. 2010), from sums (3C, ...) of counts."""
    right, _, true = np.split(sums, 3)
    return (right / np.maximum(true, 1)).sum(axis=0) / np.maximum((true > 0).sum(axis=0), 1)


def _macro_f1_of(sums: np.ndarray) -> np.ndarray:
    """Mean over classes of F1 = 2 right / (predicted + true), from sums (3C, ...) of class counts.

    The mean leaves out classes that are neither predicted nor true, as in scikit-learn for class numbers and, with
    ``zero_division=nan``, for label sets. Without any it is 0.
    """
    right, predicted, true = np.split(sums, 3)
    either = predicted + true
    return (2 * right / np.maximum(either, 1)).sum(axis=0) / np.maximum((either > 0).sum(axis=0), 1)


def _micro_f1_of(sums: np.ndarray) -> np.ndarray:
    """F1 = 2 right / (predicted + true) of all classes together, from sums (3C, ...) of class counts; 0 without any."""
    right, predicted, true = (part.sum(axis=0) for part in np.split(sums, 3))
    return 2 * right / np.maximum(predicted + true, 1)


def _matthews_of(sums: np.ndarray) -> np.ndarray:
    """Matthews' correlation of K classes (Gorodkin 2004), from sums (3C, ...) of class counts.

    ``(c n - sum_k p_k t_k) / sqrt((n^2 - sum_k p_k^2) (n^2 - sum_k t_k^2))``, where c of n rows are right, p_k are
    predicted as class k and t_k belong to it; 0 if undefined, because all predictions or all labels are equal.
    """
    right, predicted, true = np.split(sums, 3)
    rows = true.sum(axis=0)
    covariance = right.sum(axis=0) * rows - (predicted * true).sum(axis=0)
    variances = (rows**2 - (predicted**2).sum(axis=0)) * (rows**2 - (true**2).sum(axis=0))
    return np.where(variances == 0, 0, covariance / np.sqrt(np.where(variances == 0, 1, variances)))


def _kappa_of(sums: np.ndarray) -> np.ndarray:
    """Cohen's kappa (1960), agreement beyond chance, from sums (3C, ...) of class counts.

    ``(c n - sum_k p_k t_k) / (n^2 - sum_k p_k t_k)`` with the symbols of :func:`_matthews_of`; 0 if undefined.
    """
    right, predicted, true = np.split(sums, 3)
    rows, chance = true.sum(axis=0), (predicted * true).sum(axis=0)
    most = rows**2 - chance
    return np.where(most == 0, 0, (right.sum(axis=0) * rows - chance) / np.where(most == 0, 1, most))


def _jackknifed(
    score_of: Callable[[np.ndarray], np.ndarray], predictions: np.ndarray, labels: np.ndarray
) -> np.ndarray:
    """Contributions of rows to a score of class counts: the score's loss without the row, times B - 1 (Tukey 1958)."""
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
    """Pearson's r of unclipped scores; 0 if undefined, because all predictions or all labels are equal."""
    if np.ptp(predictions) == 0 or np.ptp(labels) == 0:
        return 0.0
    return float(stats.pearsonr(predictions, labels).statistic)


def _standardised(values: np.ndarray) -> np.ndarray:
    """``values`` (..., B) with mean 0 and standard deviation 1 along the last axis."""
    # Rounding may make the mean of equal numbers differ from them, so detect constants by their range.
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
    """Pearson's contributions of the ranks, plus a row's effect on the ranks of others (Croux & Dehon 2010).

    Row i adds ``k_ij`` to the rank of row j: 1 if x_j is above x_i, 1/2 if they are equal.
    """
    ranks, true = stats.rankdata(predictions, axis=-1), stats.rankdata(labels)
    moved = _moved(ranks, _standardised(true)) + _moved(np.broadcast_to(true, ranks.shape), _standardised(ranks))
    return _pearson_rows(ranks, true) + moved


def _moved(ranks: np.ndarray, others: np.ndarray) -> np.ndarray:
    """``sum_j k_ij others_j / s`` minus its mean over i, (..., B); ranks have deviation s, others are (..., B)."""
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
    "micro-f1": _of_counts(_micro_f1_of),
    "matthews": _of_counts(_matthews_of, worst=-1.0, is_correlation=True),
    "kappa": _of_counts(_kappa_of, worst=-1.0),
    "pearson": Measure(pearson, _pearson_rows, worst=-1.0, is_correlation=True),
    "spearman": Measure(spearman, _spearman_rows, worst=-1.0, is_correlation=True),
}


@cache
def load_metric(metric: Metric) -> Any:
    """The metric as an :class:`evaluate.Metric`, for programs that use ``combine`` or ``evaluator`` of that library.

    Part of the Python interface (``docs/python.md``); nothing here calls it. It returns the numbers of :func:`score`
    and, unlike ``evaluate.load(name)``, downloads no code from the Hub.
    """
    # Imported here because evaluate takes six seconds to import, and no command needs it.
    import datasets
    import evaluate

    function = METRICS[metric].score
    number = datasets.Value("float64")

    class _Metric(evaluate.Metric):
        def _info(self) -> evaluate.MetricInfo:
            features = datasets.Features({"predictions": number, "references": number})
            return evaluate.MetricInfo(description=function.__doc__ or metric, citation="", features=features)

        def _build_data_dir(self) -> str:
            # The base class would create a cache folder even with everything in memory, and leave it empty.
            return ""

        def _compute(self, predictions: Any, references: Any) -> dict[str, float]:
            return {metric: function(np.asarray(predictions), np.asarray(references))}

    return _Metric(keep_in_memory=True)


def score(metric: Metric, predictions: np.ndarray, labels: np.ndarray) -> float:
    """The score of predictions (B,) against labels (B,); raises ValueError if a prediction is not finite."""
    predictions = as_computed(predictions)
    if not (are_sets(predictions) or np.isfinite(predictions).all()):
        raise ValueError("predictions contain NaN or infinity")
    return METRICS[metric].score(predictions, as_computed(labels))


THRESHOLDS = 512
"""Maximum number of midpoints that :func:`best_threshold` tries."""


_BELOW = 1e-3
"""How far a threshold is set below all values, which are cosines in fp32."""


def best_threshold(values: np.ndarray, labels: np.ndarray, metric: Metric) -> float:
    """The best-scoring threshold, above which ``values`` (B,) are class 1, for ``labels`` (B,) of 0 and 1.

    Tries 0, the midpoints of neighbouring values (evenly spaced ones if there are many), and thresholds that put all
    values into one class. Of equally good thresholds, returns the one nearest to 0.
    """
    measure = METRICS[metric]
    return max(_thresholds(values), key=lambda threshold: measure.score((values > threshold).astype(np.int64), labels))


def _thresholds(values: np.ndarray) -> list[float]:
    """The thresholds to try on ``values`` of any shape, those nearest to 0 first."""
    ordered = np.unique(values.astype(np.float64))
    between = (ordered[1:] + ordered[:-1]) / 2
    places = np.linspace(0, len(between) - 1, min(len(between), THRESHOLDS)).round().astype(int)
    all_of_one = [float(ordered[0]) - _BELOW, float(ordered[-1])]
    return sorted([0.0, *between[places].tolist(), *all_of_one], key=lambda threshold: (abs(threshold), threshold))


def best_threshold_of_labels(outputs: np.ndarray, labels: np.ndarray, metric: Metric) -> float:
    """The best-scoring threshold, above which ``outputs`` (B, C) predict a class, for label sets (B,).

    It is one number for all classes: among 60 dev rows a rare class has two or three, so a threshold for it alone would
    be chosen by chance. Simulated with six classes, micro-F1 is .62 on new rows, .58 with a threshold a class and .58
    with none; on an easier task .73, .70 and .73. Tries what :func:`best_threshold` tries; of equally good ones,
    returns the one nearest to 0.
    """
    true, tried = as_matrix(labels), np.array(_thresholds(outputs))

    def above(columns: Iterable[np.ndarray]) -> np.ndarray:
        """How many outputs of each class are above each threshold, (C, T)."""
        return np.stack([len(one) - np.searchsorted(np.sort(one), tried, side="right") for one in columns])

    right = above(own[rows] for own, rows in zip(outputs.T, true.T, strict=True))
    counts = right, above(outputs.T), np.broadcast_to(true.sum(axis=0)[:, None], right.shape)
    score_of = _micro_f1_of if metric == "micro-f1" else _macro_f1_of
    return float(tried[score_of(np.concatenate(counts).astype(float)).argmax()])


def overall(scores: Mapping[str, float], metrics: Mapping[str, Metric]) -> tuple[float, float]:
    """Two overall scores: the plain mean, and the mean of scores rescaled to 0..1, (r + 1) / 2 for r."""
    normalised = [METRICS[metrics[target]].normalised(value) for target, value in scores.items()]
    return float(np.mean(list(scores.values()))), float(np.mean(normalised))


@dataclass(frozen=True)
class ClassScore:
    """The predictions for the rows of one class."""

    name: str
    rows: int
    """Rows of the class."""
    predicted: int
    """Rows predicted as the class."""
    right: int
    """Rows of the class predicted as the class."""
    precision: float | None
    """Precision: share of the predicted rows that are right; None without predictions of the class."""
    recall: float | None
    """Recall: share of the class's rows that are right; None without rows of the class."""
    f1: float | None
    """Harmonic mean of precision and recall; None if the class neither occurs nor is predicted."""

    @property
    def errors(self) -> int:
        """Missed rows of the class plus other rows predicted as it."""
        return self.rows + self.predicted - 2 * self.right


def confusion(predictions: np.ndarray, labels: np.ndarray, classes: int) -> tuple[tuple[int, ...], ...]:
    """Rows of each class (first index) that are predicted as each class, from predictions (B,) and labels (B,).

    Empty for label sets, whose rows belong to several.
    """
    if are_sets(labels):
        return ()
    counts = one_hot(labels, classes).T.astype(int) @ one_hot(predictions, classes)
    return tuple(map(tuple, counts.tolist()))


def class_scores(predictions: np.ndarray, labels: np.ndarray, names: Sequence[str]) -> tuple[ClassScore, ...]:
    """The scores of the classes ``names`` (C,).

    Args:
        predictions, labels: (B,), class numbers from 0 to C - 1, or label sets.
    """
    true, predicted = one_hot(labels, len(names)), one_hot(predictions, len(names))
    counts = zip(names, *(matrix.sum(axis=0).tolist() for matrix in (true, predicted, true & predicted)), strict=True)
    return tuple(
        ClassScore(
            name,
            rows,
            found,
            right,
            precision=right / found if found else None,
            recall=right / rows if rows else None,
            f1=2 * right / (rows + found) if rows + found else None,
        )
        for name, rows, found, right in counts
    )


_FEWEST = 20
"""Rows from which a temperature is fitted."""
_BINS = 10
_SURE = (0.5, 0.8, 0.9, 0.95, 0.99)


def fit_temperature(prediction: Prediction, labels: np.ndarray) -> float:
    """The temperature with the lowest cross entropy (Guo et al. 2017); 1 with fewer than 20 rows, and
    for scores and label sets.

    If all rows are right, the cross entropy alone has no minimum. So 1 / (B + 2) of each label is spread over the other
    classes (Platt 1999): of the next B + 2 rows, one is expected to be wrong.

    Args:
        labels: (B,), 0 to C - 1.
    """
    rows, probabilities = len(labels), prediction.probabilities
    if probabilities is None or are_sets(labels) or rows < _FEWEST:
        return 1.0
    classes = probabilities.shape[1]
    logs = np.log(np.maximum(probabilities.astype(np.float64), np.finfo(np.float32).tiny))
    logs -= logs.max(axis=1, keepdims=True)
    spread = 1 / (rows + 2)
    targets = np.full((rows, classes), spread / (classes - 1))
    targets[np.arange(rows), labels] = 1 - spread
    slope = float((targets * logs).sum() / rows)

    def cross_entropy(inverse: float) -> float:  # convex
        return float(np.log(np.exp(inverse * logs).sum(axis=1)).mean()) - inverse * slope

    bounds = 1 / MOST_TEMPERATURE, 1 / LEAST_TEMPERATURE
    found = minimize_scalar(cross_entropy, bounds=bounds, method="bounded", options={"xatol": 1e-6})
    return round(1 / float(found.x), 4)


def calibration_error(prediction: Prediction, labels: np.ndarray) -> float:
    """Expected calibration error (Guo et al. 2017, equation 3): how far confidence is from accuracy, in 10 equal bins.

    0 to 1: the mean over the rows (B,) of the distance in their bin.
    """
    confidence = prediction.confidence
    bins = np.ceil(confidence.astype(np.float64) * _BINS).astype(int)
    return float(np.abs(np.bincount(bins, (prediction.values == labels) - confidence)).sum() / len(labels))


@dataclass(frozen=True)
class Surer:
    """The rows whose predicted class has a probability above a threshold."""

    above: float
    rows: float
    """Their share of all rows."""
    right: float | None
    """The share of them that is right; None if there are none."""


def surer(prediction: Prediction, labels: np.ndarray) -> tuple[Surer, ...]:
    """How many rows (B,) are above some thresholds of confidence, and how many of these are right."""
    confidence, right = prediction.confidence, prediction.values == labels
    above = {threshold: confidence > threshold for threshold in _SURE}
    return tuple(
        Surer(threshold, float(rows.mean()), float(right[rows].mean()) if rows.any() else None)
        for threshold, rows in above.items()
    )
