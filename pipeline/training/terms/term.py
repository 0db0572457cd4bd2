"""Terms that a recipe may add to the loss: some read a batch's outputs, others only the weights."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor, nn

from pipeline.data.batches import Piece
from pipeline.settings.recipe import Recipe
from pipeline.training.objectives import Divergence
from pipeline.training.progress import Companion

Forward = Callable[[Callable[..., Tensor], Piece], Tensor]
"""``forward(model, piece)``: the outputs (B, k) of a model, or of its stand-in, for a piece's rows."""


class Term(Companion, Protocol):
    """A term of the loss, with its weight in it. It is a companion of training, so it may keep a state."""

    passes: int  # what it adds to the cost of a training row: 1 for a forward pass, 2 for a backward pass

    def __call__(self, model: nn.Module, piece: Piece, outputs: Tensor) -> Tensor:
        """The mean over the piece's rows, whose ``outputs`` (B, k) the model has just computed."""


@dataclass(frozen=True)
class Regularised:
    """The training run that terms are added to."""

    recipe: Recipe
    model: nn.Module  # unwrapped, with the weights that training starts from
    forward: Forward  # as the loss runs the model
    divergence: Callable[[str], Divergence]  # of a task, by the name that pieces give it
    encoders: Callable[[str], Sequence[nn.Module]]  # one or two encoders of a task's inputs
    pretrained: Collection[str] | None = None  # names of the pretrained parameters in an encoder; None: all
    without_decay: Collection[str] = ()  # names of parameters whose neutral value is not zero
