"""A loss of several terms: the objective's own, and those that see the model, the batch and its outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor, nn

from pipeline.data.batches import Piece
from pipeline.training.companion import Companion

Forward = Callable[[Callable[..., Tensor], Piece], Tensor]
"""``forward(model, piece)``: the outputs (B, k) of a model, or of what stands for it, for a piece's rows."""
Objective = Callable[[Tensor, Piece], Tensor]
"""``objective(outputs, piece)``: the mean loss of a piece's rows."""


class Term(Companion, Protocol):
    """A term of the loss, with its weight in it, that goes along with training."""

    def __call__(self, model: nn.Module, piece: Piece, outputs: Tensor) -> Tensor:
        """The mean over the piece's rows, which the model has just given ``outputs`` (B, k) for."""
        ...


def loss_with(
    forward: Forward, objective: Objective, terms: Sequence[Term] = ()
) -> Callable[[nn.Module, Piece], Tensor]:
    """The loss that :func:`pipeline.training.fit.fit` takes; without terms it is the objective's alone."""

    def loss(model: nn.Module, piece: Piece) -> Tensor:
        outputs = forward(model, piece)
        value = objective(outputs, piece)
        for term in terms:
            value = value + term(model, piece, outputs)
        return value

    return loss
