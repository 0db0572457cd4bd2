"""Gradient surgery: combine the gradients of a step's tasks so that they conflict less.

PCGrad (Yu et al. 2020, algorithm 1) projects each task's gradient off those of the tasks that it conflicts with, in
random order. UPGrad (Quinton & Rey 2024) makes the smallest change that leaves it in conflict with none. Both use
torchjd's weightings, which need only inner products of gradients. Three things differ from torchjd's aggregators:

- UPGrad sums gradients, as PCGrad does. torchjd averages them, which amounts to another learning rate.
- UPGrad's quadratic program is always solved. torchjd skips it for small gradients (squared norms that sum to less than
  1e-4), which occur near the end of training.
- A gradient whose squared norm is zero is left out. torchjd's PCGrad may divide by that zero.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import compress

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor, nn
from torchjd.aggregation import PCGradWeighting, UPGradWeighting
from torchjd.linalg import DualConeProjector

from pipeline.settings.parts import GradientSurgery

Weighting = Callable[[Tensor], Tensor]
"""From inner products of N gradients (N, N) to the weight of each in their combination (N,)."""


class Surgery:
    """Combines the gradients of a step's tasks by a rule other than their sum.

    It acts on parameters that at least two tasks share. A parameter that one task alone trains, such as its head, keeps
    that task's gradient. The N gradients are all held at once. Random orders come from torch's generator, which the
    loop seeds for each step.
    """

    def __init__(self, weighting: Weighting, parameters: Iterable[nn.Parameter]) -> None:
        self._weighting = weighting
        self._parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self._taken: list[list[Tensor | None]] = []

    def take(self) -> None:
        """Store and clear the parameters' gradient, which is that of one task's whole batch."""
        self._taken.append([parameter.grad for parameter in self._parameters])
        for parameter in self._parameters:
            parameter.grad = None

    def give(self) -> None:
        """Set the parameters' gradient to the combination of all that were taken."""
        taken, self._taken = self._taken, []
        by_parameter = list(zip(*taken, strict=True))
        is_shared = [sum(gradient is not None for gradient in gradients) > 1 for gradients in by_parameter]
        products = inner_products([list(compress(gradients, is_shared)) for gradients in taken])
        # Gradients that are not finite stay so: the loop reports them, or under fp16 the scaler skips the step.
        weights = (self._weighting(products) if products.isfinite().all() else torch.ones(len(taken))).tolist()
        for parameter, gradients, shared in zip(self._parameters, by_parameter, is_shared, strict=True):
            total: Tensor | None = None
            for gradient, weight in zip(gradients, weights if shared else [1.0] * len(taken), strict=True):
                if gradient is not None:  # the sum takes the memory of the first one
                    total = gradient.mul_(weight) if total is None else total.add_(gradient, alpha=weight)
            parameter.grad = total


def inner_products(gradients: Sequence[Sequence[Tensor | None]]) -> Tensor:
    """G_ij = g_i . g_j (N, N) in fp64 on the CPU, of N gradients in the same parts; a missing part is zero.

    A gradient whose squared norm is zero, even by underflow, gets zero products with all others.
    """
    count = len(gradients)
    device = next((part.device for parts in gradients for part in parts if part is not None), torch.device("cpu"))
    exact = torch.float32 if device.type == "mps" else torch.float64  # which Apple's GPUs lack
    products = torch.zeros(count, count, dtype=exact, device=device)
    for i in range(count):
        for j in range(i + 1):
            for one, other in zip(gradients[i], gradients[j], strict=True):
                if one is not None and other is not None:
                    products[i, j] += torch.dot(one.flatten().float(), other.flatten().float())
            products[j, i] = products[i, j]
    products = products.cpu().double()
    alive = products.diagonal() != 0
    return products.where(alive[:, None] & alive, 0.0)


def weighting_of(surgery: GradientSurgery, tasks: int) -> Weighting:
    """The weighting with which ``surgery`` combines the gradients of this many ``tasks``."""
    if surgery == "pcgrad":
        return PCGradWeighting()
    return UPGradWeighting(torch.ones(tasks, dtype=torch.float64), projector=_Exact())


class _Exact(DualConeProjector):
    def __call__(self, U: Tensor, G: Tensor) -> Tensor:
        return torch.from_numpy(dual_cone_weights(U.numpy(), G.numpy()))


def dual_cone_weights(targets: np.ndarray, products: np.ndarray) -> np.ndarray:
    """For each row u of ``targets`` (M, N) the v >= u that minimises v^T G v (Quinton & Rey 2024, proposition 1).

    With G = A^T A and v = u + s it is the non-negative least-squares problem min |A s + A u|, s >= 0.
    """
    values, vectors = np.linalg.eigh(products)
    # Scaled, so that the solver's tolerance does not depend on the gradients' size; v does not depend on the scale.
    root = (np.sqrt(values.clip(min=0) / max(values.max(), np.finfo(float).tiny))[:, None]) * vectors.T
    return np.stack([u + nnls(root, -root @ u)[0] for u in targets])
