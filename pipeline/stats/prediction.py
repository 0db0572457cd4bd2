"""Predictions of one model for one split."""

from dataclasses import dataclass
from typing import Self

import numpy as np


@dataclass(frozen=True)
class Prediction:
    """Predictions of a split, row for row: class or unclipped score (B,), and for classes probabilities (B, C)."""

    values: np.ndarray
    probabilities: np.ndarray | None

    def of(self, rows: np.ndarray) -> Self:
        """The predictions for ``rows``, a mask (B,) or indices."""
        return type(self)(self.values[rows], None if self.probabilities is None else self.probabilities[rows])
