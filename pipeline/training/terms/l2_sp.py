"""L2-SP: pretrained weights are pulled to their start instead of to zero (Li, Grandvalet & Davoine 2018, equation 4).

The term is ``alpha / 2 ||w_S - w_S^0||^2 + beta / 2 ||w_new||^2``: w_S are the pretrained weights that train, w_S^0
their values at the start of training, and w_new the new weights, such as heads and adapters. It replaces
weight decay, which pulls both to zero: use it with ``weight_decay = 0``. Biases and LayerNorms are included; a task's
copies of LayerNorms count as pretrained. New weights that are exempt from decay, such as a fusion's gates and its value
matrices, which start as the identity, are exempt here too.
"""

import torch
from torch import Tensor

from pipeline.training.objectives import Regularised
from pipeline.training.optim import is_pretrained
from pipeline.training.progress import trainable

BETA = 0.01


class L2SP:
    """The penalty, added once per step.

    It is created before a checkpoint is loaded, so a resumed run has the same start.
    """

    def __init__(self, run: Regularised, beta: float = BETA) -> None:
        self._model, self._alpha, self._beta = run.model, run.recipe.l2_sp, beta
        self._spared = frozenset(run.without_decay)
        pretrained = {
            name: weight for name, weight in trainable(run.model).items() if is_pretrained(name, run.pretrained)
        }
        self._start = {name: weight.detach().clone() for name, weight in pretrained.items()}

    def __call__(self) -> Tensor:
        weights = trainable(self._model)
        device = next(iter(weights.values())).device
        self._start = {name: start.to(device) for name, start in self._start.items()}
        moved = [(weights[name] - start).square().sum() for name, start in self._start.items()]
        new = [w.square().sum() for name, w in weights.items() if name not in self._start and name not in self._spared]
        zero = torch.zeros((), device=device)
        return self._alpha / 2 * sum(moved, zero) + self._beta / 2 * sum(new, zero)
