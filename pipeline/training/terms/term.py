"""Terms that a recipe may add to the loss: those that see a batch's outputs, and those that see the weights alone."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor, nn

from pipeline.data.batches import Piece
from pipeline.settings.recipe import Recipe
from pipeline.training.checkpoint import Companion
from pipeline.training.divergence import Divergence

Forward = Callable[[Callable[..., Tensor], Piece], Tensor]
"""``forward(model, piece)``: the outputs (B, k) of a model, or of what stands for it, for a piece's rows."""


class Term(Companion, Protocol):
    """A term of the loss, with its weight in it. It is a companion of training, so it may keep a state."""

    passes: int
    """What it adds to the cost of a training row: 1 for a forward pass, 2 for a backward pass."""

    def __call__(self, model: nn.Module, piece: Piece, outputs: Tensor) -> Tensor:
        """The mean over the piece's rows, which the model has just given ``outputs`` (B, k) for."""


@dataclass(frozen=True)
class Regularised:
    """The training that terms are added to."""

    recipe: Recipe
    model: nn.Module
    """Unwrapped, with the weights that training starts from."""
    forward: Forward
    """As the loss runs the model."""
    divergence: Callable[[str], Divergence]
    """Between outputs for a task, by its name as pieces have it."""
    backbone: Callable[[str], nn.Module]
    """What encodes the inputs of a task."""
    pretrained: Collection[str] | None = None
    """Names of the encoder's own parameters within it, as opposed to modules put into it; None: all."""
