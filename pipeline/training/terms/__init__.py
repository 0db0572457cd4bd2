"""The terms of the loss beside the objective: each in a file of its own, and all of them in ``TERMS``."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from pipeline.data.batches import Piece
from pipeline.settings.recipe import Recipe
from pipeline.training.fit import Penalty
from pipeline.training.terms.l2_sp import L2_SP
from pipeline.training.terms.proximal import PROXIMAL
from pipeline.training.terms.smart import SMART
from pipeline.training.terms.term import Forward, Regularised, Term, TermKind

TERMS: tuple[TermKind, ...] = (SMART, PROXIMAL, L2_SP)

Objective = Callable[[Tensor, Piece], Tensor]
"""``objective(outputs, piece)``: the mean loss of a piece's rows."""


@dataclass(frozen=True)
class Terms:
    """The terms of one training run."""

    of_outputs: tuple[Term, ...] = ()
    """For :func:`loss_with`; companions of training too."""
    of_weights: tuple[Penalty, ...] = ()


def terms_of(run: Regularised) -> Terms:
    """The terms that the recipe gives weight."""
    kinds = _kinds(run.recipe)
    return Terms(
        tuple(kind.of_outputs(run) for kind in kinds if kind.of_outputs is not None),
        tuple(kind.of_weights(run) for kind in kinds if kind.of_weights is not None),
    )


def extra_passes(recipe: Recipe) -> int:
    """What the recipe's terms add to the cost of a training row, in forward passes."""
    return sum(kind.passes for kind in _kinds(recipe))


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


def _kinds(recipe: Recipe) -> list[TermKind]:
    values = recipe.flat()
    return [kind for kind in TERMS if values[kind.key]]
