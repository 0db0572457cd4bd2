"""Predictions for the rows of a split."""

from dataclasses import dataclass, replace

import numpy as np

from pipeline.data.label_sets import are_sets


@dataclass(frozen=True)
class Prediction:
    """Predictions for a split, row for row.

    ``values`` (B,) are class numbers, unclipped scores or label sets; ``probabilities`` (B, C) are those of classes.
    """

    values: np.ndarray
    probabilities: np.ndarray | None

    def on(self, rows: np.ndarray) -> "Prediction":
        """The predictions for the rows selected by the mask ``rows``, bool (B,)."""
        return Prediction(self.values[rows], None if self.probabilities is None else self.probabilities[rows])

    @property
    def confidence(self) -> np.ndarray:
        """The probability (B,) of the predicted class; of label sets, that the least sure of all labels is right."""
        assert self.probabilities is not None
        if are_sets(self.values):
            return np.maximum(self.probabilities, 1 - self.probabilities).min(axis=-1)
        return self.probabilities[np.arange(len(self.values)), self.values]

    def calibrated(self, temperature: float) -> "Prediction":
        """The same classes with probabilities ``p^(1 / temperature)``, normalised; scores stay as they are.

        For a softmax this divides the logits by the temperature (Guo et al. 2017).
        """
        if self.probabilities is None or temperature == 1:
            return self
        powers = (self.probabilities / self.probabilities.max(axis=-1, keepdims=True)) ** (1 / temperature)
        return replace(self, probabilities=powers / powers.sum(axis=-1, keepdims=True))
