"""Bregman proximal point: each step stays close to a running mean of the weights (Jiang et al. 2020, section 2.2).

The term is ``mu l(f(x; theta), f(x; theta~))`` with the divergence l of SMART. The teacher theta~ is the running mean:
``theta~ <- beta theta~ + (1 - beta) theta`` after each optimiser step, beta = 0.99 for the first tenth of the steps
and 0.999 from then on.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.optim.swa_utils import get_ema_multi_avg_fn

from pipeline.data.batches import Piece
from pipeline.models.transfer_model import is_threshold
from pipeline.training.objectives import Regularised, Term
from pipeline.training.progress import trainable

EARLY, LATE, EARLY_SHARE = 0.99, 0.999, 0.1


class Proximal(Term):
    """The term, and the companion of training that keeps the teacher.

    The teacher copies the trainable tensors, heads included, and shares the frozen ones. It runs in evaluation mode
    without gradients, and is initialised to the model.
    """

    passes = 1

    def __init__(self, run: Regularised) -> None:
        self._run, self._model = run, run.model
        self._means = {beta: get_ema_multi_avg_fn(beta) for beta in (EARLY, LATE)}
        self.teacher: dict[str, Tensor] = {}
        self._unset: dict[str, Tensor] = {}

    def __call__(self, model: nn.Module, piece: Piece, outputs: Tensor) -> Tensor:
        """``mu l`` of the piece's rows, whose ``outputs`` (B, k) the model has just computed."""

        def teacher(*arguments: Any, **keywords: Any) -> Any:
            # A module may have two names in the model, as a backbone of several tasks does. Swap its weights once: with
            # tied names they would be swapped twice, and the teacher's would stay in the live model.
            weights = {**self.teacher, **self._unset}
            return functional_call(self._model, weights, arguments, keywords, tie_weights=False)

        training = [module for module in self._model.modules() if module.training]
        self._model.eval()
        try:
            with torch.no_grad():
                before = self._run.forward(teacher, piece)
        finally:
            for module in training:
                module.training = True
        return self._run.recipe.bregman * self._run.divergence(piece.task)(outputs, before)

    def start(self, kept: Mapping[str, Tensor]) -> None:
        self.teacher = {
            name: kept.get(name, live).detach().to(live.device, copy=True)
            for name, live in trainable(self._model).items()
        }

        # A threshold tuned on dev does not train: outputs are compared before it is subtracted.
        named = self._model.named_parameters(remove_duplicate=False)
        self._unset = {name: torch.zeros_like(p) for name, p in named if is_threshold(name)}

    def after_step(self, step: int, total: int) -> None:
        beta = EARLY if step <= EARLY_SHARE * total else LATE
        live = [parameter.detach() for parameter in trainable(self._model).values()]
        self._means[beta](list(self.teacher.values()), live, step)

    def state(self) -> dict[str, Tensor]:
        return dict(self.teacher)
