"""SMART: a prediction should not change when the embedded tokens change a little (Jiang et al. 2020).

The term is ``lambda R`` with ``R = l(f(e + delta), f(e))``: e is the output of the embedding layer after its LayerNorm
(fed in as ``inputs_embeds``, it would get positions and LayerNorm twice), l a divergence, and delta comes from one
step of ascent: ``delta_0 = 1e-5 N(0, 1)``, ``g`` the gradient of ``l(f(e + delta_0), f(e))`` with f(e) held fixed. R is
a mean over rows; g is that of each row's own l, as in the authors' code, which sums there.

- ``reference`` is the authors' code: ``delta = (delta_0 + 1e-3 g) / (|.|_inf + 1e-6)``, the norm taken
  over each token. The 1e-6 only guards the division: the largest entry of delta is about 1, whatever the noise.
  As g is tiny beside delta_0, delta is mostly random noise: the curve's column ``smart_cosine``, the cosine between
  delta_0 and delta, shows how much.
- ``gradient`` drops the noise from the result: ``delta = g / |g|_inf``. With a radius of 1e-5 it is the paper's
  projection onto a ball of that radius, and R is about ten orders of magnitude smaller.

Both are scaled by ``radius``. If there are two encoders, both are perturbed, by the gradients at their embeddings. The
model stays in training mode, as in the authors' code: the passes draw new dropout masks, so R also penalises changes
due to dropout.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pipeline.data.batches import Piece
from pipeline.settings.parts import SmartDirection
from pipeline.training.objectives import Regularised, Term

NOISE, STEP, GUARD = 1e-5, 1e-3, 1e-6
"""sigma, eta and epsilon of the authors' code."""


class Smoothness(Term):
    """The term ``lambda R``; the mean of its cosines since the last evaluation goes into the curve.

    The model must run its embeddings: with a cached prefix nothing would be perturbed, which raises a RuntimeError.
    """

    passes = 5
    """The direction takes a forward pass and a backward pass to the embeddings, without gradients of weights: 1 + 1.
    The perturbed embeddings take a forward and a backward pass: 1 + 2."""

    def __init__(self, run: Regularised) -> None:
        self._run, self._settings = run, run.recipe.smart
        self._cosines = torch.zeros(2)

    def __call__(self, model: nn.Module, piece: Piece, outputs: Tensor) -> Tensor:
        """``lambda R`` of the piece's rows, whose ``outputs`` (B, k) the model has just computed."""
        run, divergence = self._run, self._run.divergence(piece.task)
        embeddings = [encoder.get_submodule("embeddings") for encoder in run.encoders(piece.task)]
        with ExitStack() as hooks:
            noise = [hooks.enter_context(perturbed(layer)) for layer in embeddings]
            # The sum over the rows: a row's direction does not depend on the others.
            ascent = len(piece) * divergence(run.forward(model, piece), outputs.detach())
        starts = [added for (added,) in noise]
        deltas = [
            perturbation(start.detach(), gradient, self._settings.direction, self._settings.radius)
            for start, gradient in zip(starts, torch.autograd.grad(ascent, starts), strict=True)
        ]
        mask = piece.batch.get("attention_mask")
        pairs = zip(starts, deltas, strict=True)
        mean = torch.stack([mean_cosine(start.detach(), delta, mask) for start, delta in pairs]).mean()
        # It stays on the device: a GPU's host would wait for it.
        self._cosines = self._cosines.to(mean.device) + torch.stack([mean, torch.ones_like(mean)])
        with ExitStack() as hooks:
            for layer, delta in zip(embeddings, deltas, strict=True):
                hooks.enter_context(perturbed(layer, delta))
            return self._settings.weight * divergence(run.forward(model, piece), outputs)

    def start(self, kept: Mapping[str, Tensor]) -> None:
        self._cosines = kept.get("cosines", torch.zeros(2))

    def measured(self) -> dict[str, float | None]:
        total, count = self._cosines.tolist()
        self._cosines = torch.zeros(2)
        return {"smart_cosine": total / count if count else None}

    def state(self) -> dict[str, Tensor]:
        return {"cosines": self._cosines}


def perturbation(start: Tensor, gradient: Tensor, direction: SmartDirection, radius: float = 1.0) -> Tensor:
    """delta (B, T, d) from the noise delta_0 and the gradient there, with one norm per token (see the module).

    ``gradient`` does not perturb a token without gradient, such as padding.
    """
    if direction == "reference":
        moved = start + STEP * gradient
        return radius * moved / (moved.abs().amax(dim=-1, keepdim=True) + GUARD)
    # No guard of 1e-6 here: with such small noise the gradients are about as small.
    largest = gradient.abs().amax(dim=-1, keepdim=True)
    return radius * gradient / largest.clamp(min=torch.finfo(gradient.dtype).tiny)


def mean_cosine(one: Tensor, other: Tensor, mask: Tensor | None) -> Tensor:
    """The mean cosine of two perturbations (B, T, d) over the tokens of a batch.

    Args:
        mask: (B, T), 1 for a token and 0 for padding. A batch that is computed without padding has (1, N, d) instead:
            its tokens come first, and the rest only fills it up.
    """
    cosines = F.cosine_similarity(one, other, dim=-1)
    if mask is None:
        return cosines.mean()
    if mask.shape != cosines.shape:
        mask = torch.arange(cosines.shape[1], device=mask.device) < mask.sum()
    weights = mask.expand_as(cosines)
    return (cosines * weights).sum() / weights.sum()


@contextmanager
def perturbed(embeddings: nn.Module, delta: Tensor | None = None) -> Iterator[list[Tensor]]:
    """Make ``embeddings`` return ``e + delta``, in fp32: bf16 would lose 1e-5 beside 1. Yields the deltas.

    Args:
        delta: (B, T, d); None: fresh noise delta_0, which requires a gradient.
    """
    added: list[Tensor] = []

    def add(_: nn.Module, __: Any, states: Tensor) -> Tensor:
        states = states.float()
        added.append((NOISE * torch.randn_like(states)).requires_grad_() if delta is None else delta)
        return states + added[-1]

    with embeddings.register_forward_hook(add):
        yield added
    if not added:
        raise RuntimeError("nothing was perturbed: the model did not run its embeddings")
