"""What a model answers for one text or pair."""

import math
from dataclasses import dataclass
from typing import Any, Literal

from pipeline.system.errors import PipelineError


@dataclass(frozen=True)
class Answer:
    """The number of each label, in the task's order: a probability or a score, and what the head gave before that."""

    scores: dict[str, float]
    raw: dict[str, float]

    def listed(
        self, transform: Literal["softmax", "sigmoid", "none"] = "softmax", top_k: int | None = None
    ) -> list[dict[str, Any]]:
        """``{"label", "score"}`` of the ``top_k`` highest labels, or of all; equal ones in the task's order.

        Args:
            transform: softmax: probabilities, or the score; none: the raw outputs; sigmoid: of each raw output.
        """
        items = self.scores if transform == "softmax" else self.raw
        if transform == "sigmoid":
            items = {label: (1 + math.tanh(value / 2)) / 2 for label, value in items.items()}
        ranked = sorted(items.items(), key=lambda item: -item[1])[:top_k]
        return [{"label": label, "score": score} for label, score in ranked]


class TooLong(PipelineError):
    """A text has more tokens than the model reads."""
