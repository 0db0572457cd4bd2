"""Predictions of one model for one split."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Prediction:
    """Predictions of a split, row for row: class or unclipped score (B,), and for classes probabilities (B, C)."""

    values: np.ndarray
    probabilities: np.ndarray | None
