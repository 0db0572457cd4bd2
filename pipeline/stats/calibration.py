"""Calibration: whether a class that gets a probability of .8 is right 8 times in 10, and a temperature that helps."""

from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize_scalar

from pipeline.data.labels import LEAST_TEMPERATURE, MOST_TEMPERATURE, Prediction, are_sets

_FEWEST = 20
"""Rows from which a temperature is fitted."""
_BINS = 10
_THRESHOLDS = (0.5, 0.8, 0.9, 0.95, 0.99)


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
    above = {threshold: confidence > threshold for threshold in _THRESHOLDS}
    return tuple(
        Surer(threshold, float(rows.mean()), float(right[rows].mean()) if rows.any() else None)
        for threshold, rows in above.items()
    )
