"""The terms that a recipe can add to the objective, one file per term, keyed by the recipe key of its weight."""

from pipeline.settings.recipe import Recipe
from pipeline.training.fit import Penalty
from pipeline.training.objectives import Regularised, Term
from pipeline.training.terms.contrastive import Contrastive
from pipeline.training.terms.l2_sp import L2SP
from pipeline.training.terms.proximal import Proximal
from pipeline.training.terms.smart import Smoothness

OF_OUTPUTS: dict[str, type[Contrastive | Smoothness | Proximal]] = {
    "contrastive": Contrastive,  # first: it reads the pass that the loss is made of
    "smart": Smoothness,
    "bregman": Proximal,
}
OF_WEIGHTS = {"l2_sp": L2SP}
"""Terms that are added once per step, whatever its batches."""


def terms_of(run: Regularised) -> tuple[list[Term], list[Penalty]]:
    """The terms whose weight in the recipe is not zero: those of outputs, and those of weights.

    Terms of outputs are added to a piece's loss; they are companions of training too.
    """
    weights = run.recipe.flat()
    return (
        [term(run) for key, term in OF_OUTPUTS.items() if weights[key]],
        [term(run) for key, term in OF_WEIGHTS.items() if weights[key]],
    )


def extra_passes(recipe: Recipe) -> int:
    """What the recipe's terms add to the cost of a training row, in forward passes."""
    weights = recipe.flat()
    return sum(term.passes for key, term in OF_OUTPUTS.items() if weights[key])
