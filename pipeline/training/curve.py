"""The learning curve: a point each time the model is scored."""

import math
from collections.abc import Mapping
from types import MappingProxyType

from pipeline.training.checkpoint import Progress

Scores = float | Mapping[str, float]
"""Dev score of a model, or one per task, of which the mean decides; higher is better."""


def add_point(
    progress: Progress,
    epoch: int,
    loss: float | None,
    scores: Scores,
    learning_rate: float,
    measured: Mapping[str, float | None] = MappingProxyType({}),
) -> bool:
    """Append a score to the curve; returns whether it is better than all before.

    Args:
        epoch: that has ended; 0 is the start, before any step.
        loss: mean over the epoch's steps; None at the start.
        learning_rate: of the last step.
        measured: further columns, the same at every point.
    """
    each = {f"dev_{name}": value for name, value in scores.items()} if isinstance(scores, Mapping) else {}
    score = sum(scores.values()) / len(scores) if isinstance(scores, Mapping) else scores
    best = not progress.curve or score > progress.best_score
    if best:
        progress.best_score, progress.best_epoch = score, epoch
    progress.curve.append(
        {
            "epoch": epoch,
            "loss": loss,
            "dev": score,
            **each,
            "learning_rate": learning_rate,
            **measured,
            "examples": progress.examples,
            "seconds": round(progress.train_seconds + progress.evaluation_seconds, 3),
        }
    )
    return best


def is_over(progress: Progress, epochs: int, patience: int | None) -> bool:
    """Whether training ends with the epoch of the curve's last point."""
    epoch = progress.epoch
    return epoch >= epochs or epoch - progress.best_epoch >= (patience or math.inf)
