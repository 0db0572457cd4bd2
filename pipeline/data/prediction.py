"""Predictions for the rows of a split."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Prediction:
    """Predictions for a split, row for row: class or unclipped score (B,), and for classes probabilities (B, C)."""

    values: np.ndarray
    probabilities: np.ndarray | None

    def on(self, rows: np.ndarray) -> "Prediction":
        """The predictions for the rows selected by the mask ``rows``, bool (B,)."""
        return Prediction(self.values[rows], None if self.probabilities is None else self.probabilities[rows])
