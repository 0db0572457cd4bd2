"""The terms that a recipe can add to the objective, one file per term, keyed by the recipe key of its weight."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from pipeline.data.batches import Piece
from pipeline.settings.recipe import Recipe
from pipeline.training.fit import Penalty
from pipeline.training.terms.contrastive import Contrastive
from pipeline.training.terms.l2_sp import L2SP
from pipeline.training.terms.proximal import Proximal
from pipeline.training.terms.smart import Smoothness
from pipeline.training.terms.term import Forward, Regularised, Term

OF_OUTPUTS: dict[str, type[Contrastive | Smoothness | Proximal]] = {
    "contrastive": Contrastive,  # first: it reads the pass that the loss is made of
    "smart": Smoothness,
    "bregman": Proximal,
}
OF_WEIGHTS = {"l2_sp": L2SP}
"""Terms that are added once per step, whatever its batches."""

Objective = Callable[[Tensor, Piece], Tensor]
"""``objective(outputs, piece)``: the mean loss of a piece's rows."""


@dataclass(frozen=True)
class Terms:
    """The terms of one training run."""

    of_outputs: tuple[Term, ...] = ()  # for `loss_with`; companions of training too
    of_weights: tuple[Penalty, ...] = ()


def terms_of(run: Regularised) -> Terms:
    """The terms whose weight in the recipe is not zero."""
    weights = run.recipe.flat()
    return Terms(
        tuple(term(run) for key, term in OF_OUTPUTS.items() if weights[key]),
        tuple(term(run) for key, term in OF_WEIGHTS.items() if weights[key]),
    )


def extra_passes(recipe: Recipe) -> int:
    """What the recipe's terms add to the cost of a training row, in forward passes."""
    weights = recipe.flat()
    return sum(term.passes for key, term in OF_OUTPUTS.items() if weights[key])


def loss_with(
    forward: Forward, objective: Objective, terms: Sequence[Term] = ()
) -> Callable[[nn.Module, Piece], Tensor]:
    """The loss that :func:`pipeline.training.fit.fit` takes; without terms, the objective."""

    def loss(model: nn.Module, piece: Piece) -> Tensor:
        outputs = forward(model, piece)
        value = objective(outputs, piece)
        for term in terms:
            value = value + term(model, piece, outputs)
        return value

    return loss
