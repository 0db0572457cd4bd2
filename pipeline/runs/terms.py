"""The terms that a recipe adds to the loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pipeline.settings.recipe import Recipe

if TYPE_CHECKING:
    from torch import nn

    from pipeline.training.divergence import Divergence
    from pipeline.training.terms import Forward, Term


def terms_of(
    recipe: Recipe,
    model: nn.Module,
    forward: Forward,
    divergence: Callable[[str], Divergence],
    backbone: Callable[[str], nn.Module],
) -> list[Term]:
    """SMART and the Bregman proximal point, where ``recipe`` gives them weight; they are companions of training too.

    Args:
        model: unwrapped.
        forward: as the loss runs the model.
        divergence: between outputs for a task, by its name as pieces have it.
        backbone: what encodes the inputs of a task.
    """
    from torch import Tensor

    from pipeline.training.proximal import Proximal
    from pipeline.training.smoothness import Smoothness

    def embeddings(task: str) -> nn.Module:
        found = backbone(task).embeddings
        assert not isinstance(found, Tensor)
        return found

    terms: list[Term] = []
    if recipe.smart:
        direction, radius = recipe.smart_direction, recipe.smart_radius
        terms.append(Smoothness(recipe.smart, forward, divergence, embeddings, direction, radius))
    if recipe.bregman:
        terms.append(Proximal(recipe.bregman, model, forward, divergence))
    return terms
