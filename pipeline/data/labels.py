"""Labels and predictions: kinds of tasks and their metrics, label sets, and what a model predicts for a split.

A row of a task of kind ``labels`` has any number of the task's classes, or none: a label set. It is a text with one
digit a class: ``"0110"`` has the second and third of four. So it is a single value, as a class or a score is: columns
of them are counted, hashed, split and saved alike. Arrays (B,) of label sets have NumPy's dtype ``U``. They become
matrices (B, C) only where classes are counted.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

if TYPE_CHECKING:  # it takes long to load
    import pandas as pd

Kind = Literal["classes", "score", "labels"]
"""One class a row, a score, or any number of classes a row."""
ClassMetric = Literal["accuracy", "balanced-accuracy", "macro-f1", "matthews", "kappa"]
LabelsMetric = Literal["micro-f1", "macro-f1"]
ScoreMetric = Literal["pearson", "spearman"]
Metric = Literal[ClassMetric, LabelsMetric, ScoreMetric]

EnsembleRule = Literal["mean", "uniform", "weighted", "mode", "median"]

METRICS_OF: dict[Kind, tuple[Metric, ...]] = {
    "classes": get_args(ClassMetric),
    "score": get_args(ScoreMetric),
    "labels": get_args(LabelsMetric),
}
LEAST_TEMPERATURE, MOST_TEMPERATURE = 0.05, 20.0
"""Bounds of the temperature that calibrates probabilities."""


def same_form(text: str) -> str:
    """``text`` normalised for comparing names: one Unicode form, no outer white space, no null characters."""
    return unicodedata.normalize("NFC", text.replace("\0", "")).strip()


def as_sets(matrix: np.ndarray) -> np.ndarray:
    """The label sets (...) of a matrix (..., C) that is true, or 1, where a row has a class."""
    digits = np.ascontiguousarray(np.where(matrix, "1", "0"))
    return digits.view(f"U{digits.shape[-1]}")[..., 0]


def as_matrix(sets: Any) -> np.ndarray:
    """The matrix, bool (..., C), of label sets (...)."""
    return np.ascontiguousarray(sets, dtype=str)[..., None].view("U1") == "1"


def are_sets(values: np.ndarray) -> bool:
    """Whether an array, or a column of pandas as one, holds label sets, not class numbers or scores."""
    return values.dtype.kind in "OUT"


def holds_sets(column: pd.Series) -> bool:
    """Whether all values of a column are label sets over one number of classes."""
    are_texts = all(isinstance(value, str) and value and {*value} <= {"0", "1"} for value in column)
    return are_texts and column.str.len().nunique() == 1


def as_computed(values: Any) -> np.ndarray:
    """Label sets with dtype ``U``, and anything else as float64."""
    values = np.asarray(values)
    return values.astype(str if are_sets(values) else np.float64)


def one_hot(values: np.ndarray, classes: int) -> np.ndarray:
    """The matrix, bool (B, C), of label sets or class numbers (B,)."""
    return as_matrix(values) if len(values) and are_sets(values) else values[:, None] == np.arange(classes)


def names_in(label_set: str, classes: Sequence[str]) -> tuple[str, ...]:
    """The names of the classes in a label set, in the task's order."""
    return tuple(name for name, digit in zip(classes, label_set, strict=True) if digit == "1")


@dataclass(frozen=True)
class Prediction:
    """Predictions for a split, row for row.

    ``values`` (B,) are class numbers, unclipped scores or label sets; ``probabilities`` (B, C) are those of classes.
    """

    values: np.ndarray
    probabilities: np.ndarray | None

    def on(self, rows: np.ndarray) -> Prediction:
        """The predictions for the rows selected by the mask ``rows``, bool (B,)."""
        return Prediction(self.values[rows], None if self.probabilities is None else self.probabilities[rows])

    @property
    def confidence(self) -> np.ndarray:
        """The probability (B,) of the predicted class; of label sets, that the least sure of all labels is right."""
        assert self.probabilities is not None
        if are_sets(self.values):
            return np.maximum(self.probabilities, 1 - self.probabilities).min(axis=-1)
        return self.probabilities[np.arange(len(self.values)), self.values]

    def calibrated(self, temperature: float) -> Prediction:
        """The same classes with probabilities ``p^(1 / temperature)``, normalised; scores stay as they are.

        For a softmax this divides the logits by the temperature (Guo et al. 2017).
        """
        if self.probabilities is None or temperature == 1:
            return self
        powers = (self.probabilities / self.probabilities.max(axis=-1, keepdims=True)) ** (1 / temperature)
        return replace(self, probabilities=powers / powers.sum(axis=-1, keepdims=True))
