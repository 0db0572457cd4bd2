"""Predictions for the rows of a split."""

from dataclasses import dataclass, replace

import numpy as np


@dataclass(frozen=True)
class Prediction:
    """Predictions for a split, row for row: class or unclipped score (B,), and for classes probabilities (B, C)."""

    values: np.ndarray
    probabilities: np.ndarray | None

    def on(self, rows: np.ndarray) -> "Prediction":
        """The predictions for the rows selected by the mask ``rows``, bool (B,)."""
        return Prediction(self.values[rows], None if self.probabilities is None else self.probabilities[rows])

    @property
    def confidence(self) -> np.ndarray:
        """The probability (B,) of the predicted class."""
        assert self.probabilities is not None
        return self.probabilities[np.arange(len(self.values)), self.values]

    def calibrated(self, temperature: float) -> "Prediction":
        """The same classes with probabilities ``p^(1 / temperature)``, normalised; scores stay as they are.

        For a softmax this divides the logits by the temperature (Guo et al. 2017).
        """
        if self.probabilities is None or temperature == 1:
            return self
        powers = (self.probabilities / self.probabilities.max(axis=-1, keepdims=True)) ** (1 / temperature)
        return replace(self, probabilities=powers / powers.sum(axis=-1, keepdims=True))
