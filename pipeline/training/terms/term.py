"""Terms that a recipe may add to the loss: some read a batch's outputs, others only the weights."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from torch import Tensor, nn

from pipeline.data.batches import Piece
from pipeline.data.tasks import Task
from pipeline.settings.recipe import Recipe
from pipeline.training.checkpoint import Companion
from pipeline.training.objectives import loss_scale

Divergence = Callable[[Tensor, Tensor], Tensor]
"""How far apart two outputs (B, k) of a head are, as the mean over the batch; zero where they are equal."""
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
    divergence: Callable[[str], Divergence]  # between outputs for a task, by the name that pieces give it
    encoders: Callable[[str], Sequence[nn.Module]]  # one or two encoders of a task's inputs
    pretrained: Collection[str] | None = None  # names of the pretrained parameters in an encoder; None: all
    without_decay: Collection[str] = ()  # names of parameters whose neutral value is not zero


def divergence_of(task: Task, recipe: Recipe) -> Divergence:
    """The divergence for a task under a resolved recipe (Jiang et al. 2020, section 2)."""
    if task.kind == "labels":
        return label_divergence
    if task.kind == "classes" and recipe.head != "cosine":
        return class_divergence
    weight = loss_scale(task, recipe)
    return squared_error if weight == 1 else partial(squared_error, weight=weight)


def class_divergence(one: Tensor, other: Tensor) -> Tensor:
    """Symmetric Kullback-Leibler divergence ``sum_c (p_c - q_c)(z_c - y_c)`` of logits z and y, p and q their softmax.

    A single logit is the Bernoulli case ``(p - q)(z - y)`` with logistic p and q; its softmax would always be 1.
    Each of the two KL terms holds its target fixed, as in the authors' code, so the gradient for z is just ``p - q``
    per row, and that for y its negative. Their code sums over a batch; with a mean, a weight fits any batch size.
    """
    probabilities = (one.sigmoid(), other.sigmoid()) if one.shape[-1] == 1 else (one.softmax(-1), other.softmax(-1))
    apart = (probabilities[0] - probabilities[1]).detach()
    return (apart * (one - other)).sum(dim=-1).mean()


def label_divergence(one: Tensor, other: Tensor) -> Tensor:
    """The Bernoulli case of :func:`class_divergence` for every class, as the mean over the classes."""
    return ((one.sigmoid() - other.sigmoid()).detach() * (one - other)).mean()


def squared_error(one: Tensor, other: Tensor, weight: float = 1.0) -> Tensor:
    """The divergence of scores and cosines, on the scale of the loss: ``weight`` is :func:`loss_scale`."""
    return weight * (one - other).square().sum(dim=-1).mean()
