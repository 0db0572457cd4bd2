"""Divergences: how far two outputs of a model on the same rows lie apart. One a kind of output, each a batch mean.

Mean everywhere: with a sum for classes and a mean for scores, as the code around SMART has it, a term's weight would
mean something else for each task and each batch size.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from pipeline.data.tasks import Task
from pipeline.settings.recipe import Recipe

Divergence = Callable[[Tensor, Tensor], Tensor]
"""Of outputs (B, k) and (B, k), as the head gives them; zero where they are equal."""


def divergence_of(task: Task, recipe: Recipe) -> Divergence:
    """What smoothness is measured in for a task under a resolved recipe (Jiang et al. 2020, section 2)."""
    return class_divergence if task.kind == "classes" and recipe.head != "cosine" else squared_error


def class_divergence(one: Tensor, other: Tensor) -> Tensor:
    """Symmetric Kullback-Leibler divergence ``sum_c (p_c - q_c)(z_c - y_c)`` of logits z and y, p and q their softmax.

    One logit is the Bernoulli case ``(p - q)(z - y)`` with the logistic p and q: a softmax over it would always be 1.
    Each of the two KL terms holds its target fixed, as in the authors' code, so the gradient for z is just ``p - q`` a
    row and that for y its negative; with targets that are differentiated too it would be another.
    """
    probabilities = (one.sigmoid(), other.sigmoid()) if one.shape[-1] == 1 else (one.softmax(-1), other.softmax(-1))
    apart = (probabilities[0] - probabilities[1]).detach()
    return (apart * (one - other)).sum(dim=-1).mean()


def squared_error(one: Tensor, other: Tensor) -> Tensor:
    """Of scores and cosines, in the head's own scale, which is that of the loss beside it."""
    return (one - other).square().sum(dim=-1).mean()
