"""Scores of every class, and the score of always answering the largest class."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

from pipeline.data.metric_names import Metric
from pipeline.stats.metrics import score


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


@dataclass(frozen=True)
class LargestClass:
    """The class with the most rows, and the score of always answering it."""

    name: str
    score: float


def class_scores(predictions: np.ndarray, labels: np.ndarray, names: Sequence[str]) -> tuple[ClassScore, ...]:
    """The scores of each of the classes ``names`` (C,), from predictions (B,) and labels (B,) of 0 to C - 1."""
    classes = np.arange(len(names))
    shares = precision_recall_fscore_support(labels, predictions, labels=classes, zero_division=np.nan)[:3]
    counts = confusion_matrix(labels, predictions, labels=classes)
    return tuple(
        ClassScore(
            name,
            int(counts[number].sum()),
            int(counts[:, number].sum()),
            int(counts[number, number]),
            *(None if np.isnan(share[number]) else float(share[number]) for share in shares),
        )
        for number, name in enumerate(names)
    )


def largest_class(labels: np.ndarray, names: Sequence[str], metric: Metric) -> LargestClass:
    """The largest class of ``labels`` (B,); the first of equally large ones."""
    largest = int(np.bincount(labels).argmax())
    return LargestClass(names[largest], score(metric, np.full(len(labels), largest), labels))
