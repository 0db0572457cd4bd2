"""What a model answers for one text or pair."""

from dataclasses import dataclass
from typing import Any

from pipeline.system.errors import PipelineError


@dataclass(frozen=True)
class Answer:
    """The number of each label, in the task's order: a probability or a score, and what the head gave before that."""

    scores: dict[str, float]
    raw: dict[str, float]

    def listed(self, raw: bool = False) -> list[dict[str, Any]]:
        """``{"label", "score"}`` of each label, the highest first; equal ones in the task's order."""
        items = (self.raw if raw else self.scores).items()
        return [{"label": label, "score": score} for label, score in sorted(items, key=lambda item: -item[1])]


class TooLong(PipelineError):
    """A text has more tokens than the model reads."""
