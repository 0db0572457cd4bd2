"""Divergences: how far apart two outputs of a model for the same rows are, averaged over the batch.

The code around SMART sums over a batch of classes and averages over one of scores. Here both are means, so that a
term's weight means the same for every task and batch size.
"""

from collections.abc import Callable

from torch import Tensor

from pipeline.data.tasks import Task
from pipeline.settings.recipe import Recipe

Divergence = Callable[[Tensor, Tensor], Tensor]
"""Of two outputs (B, k) of a head; zero where they are equal."""


def divergence_of(task: Task, recipe: Recipe) -> Divergence:
    """The divergence for a task under a resolved recipe (Jiang et al. 2020, section 2)."""
    return class_divergence if task.kind == "classes" and recipe.head != "cosine" else squared_error


def class_divergence(one: Tensor, other: Tensor) -> Tensor:
    """Symmetric Kullback-Leibler divergence ``sum_c (p_c - q_c)(z_c - y_c)`` of logits z and y, p and q their softmax.

    A single logit is the Bernoulli case ``(p - q)(z - y)`` with logistic p and q; its softmax would always be 1.
    Each of the two KL terms holds its target fixed, as in the authors' code. The gradient for z is therefore just
    ``p - q`` per row, and that for y its negative.
    """
    probabilities = (one.sigmoid(), other.sigmoid()) if one.shape[-1] == 1 else (one.softmax(-1), other.softmax(-1))
    apart = (probabilities[0] - probabilities[1]).detach()
    return (apart * (one - other)).sum(dim=-1).mean()


def squared_error(one: Tensor, other: Tensor) -> Tensor:
    """For scores and cosines, on the head's own scale, which is also that of the loss."""
    return (one - other).square().sum(dim=-1).mean()
