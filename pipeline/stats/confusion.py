"""Macro F1 and Matthews' correlation: scores that follow from how often each class is right, predicted and true."""

import numpy as np


def class_counts(predictions: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """For each of C classes whether a row is predicted rightly as it, is predicted as it, and is it: (3C, ..., B).

    Args:
        predictions: (..., B), against labels (B,). A class that occurs in neither is not counted.
    """
    classes = np.unique(np.concatenate([predictions.ravel(), labels]))
    predicted = predictions == classes.reshape(-1, *[1] * predictions.ndim)
    true = np.broadcast_to(labels == classes.reshape(-1, *[1] * predictions.ndim), predicted.shape)
    return np.concatenate([predicted & true, predicted, true]).astype(float)


def macro_f1_of(sums: np.ndarray, _: np.ndarray) -> np.ndarray:
    """Mean over classes of F1 = 2 right / (predicted + true), (R, S), from sums (R, 3C, S) of class counts.

    A class that is neither predicted nor true is left out of the mean, as scikit-learn does.
    """
    right, predicted, true = np.split(sums, 3, axis=1)
    either = predicted + true
    return (2 * right / np.maximum(either, 1)).sum(axis=1) / (either > 0).sum(axis=1)


def matthews_of(sums: np.ndarray, _: np.ndarray) -> np.ndarray:
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
    return float(macro_f1_of(class_counts(predictions, labels).sum(axis=-1)[None, :, None], labels).item())


def matthews(predictions: np.ndarray, labels: np.ndarray) -> float:
    return float(matthews_of(class_counts(predictions, labels).sum(axis=-1)[None, :, None], labels).item())
