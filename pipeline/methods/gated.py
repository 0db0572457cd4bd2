"""Gated fusion: the target's adapter plus the gated outputs of other tasks' adapters.

With frozen source outputs z_n, output z of the target's adapter and sub-layer output h::

    o = z + sum_n g_n(h) z_n        token:  g_n(h) = w_n . h + b_n, a number for each token
                                    scalar: g_n = b_n               vector: g_n in R^d, for each feature
                                    matrix: g_n = b_n I + M_n, with M_n = A_n B_n of rank r, or M_n in R^{d x d}

There is no softmax, so sources do not compete: the next layer can use a source only if its output arrives there at
about full strength. Initially w_n and M_n are zero, and b_n is the recipe's ``gate_start`` or min(1, 2 / N), the mean
of ScaLearn's initial weights. By default, linear probes on the target choose the sources and each b_n
(:mod:`pipeline.runs.initial`).

If z is fresh and trains with the gates, it learns what the sources do not know. If z was already trained on the same
rows, the gates find nothing left to gain from the sources (the stacking problem of Wolpert 1992). Without z, one gate
per feature gives ScaLearn and one per adapter ScaLearnUniform; if all sites share their gates, ScaLearn++ and
ScaLearnUniform++ (Frohmann et al. 2024, section 3).
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from pipeline.methods.bank import AdapterBank
from pipeline.methods.saved import FusionLayer, FusionMethod, fused_sites, replace_layers, too_wide
from pipeline.settings.parts import Gate
from pipeline.settings.recipe import Recipe
from pipeline.system.errors import PipelineError

GATED_FILE = "gated_fusion.safetensors"


class Gated(FusionMethod):
    file = GATED_FILE

    def misfit(self, recipe: Recipe, width: int) -> str:
        return too_wide("gate_rank", recipe.gated.rank_in_effect, width)

    def put_in(
        self, backbone: PreTrainedModel, members: Sequence[str], task: str, recipe: Recipe, anchor: str | None
    ) -> None:
        if recipe.gated.own in ("trained", "frozen") and task not in members:
            raise PipelineError(
                f"own_adapter = '{recipe.gated.own}' uses the target's adapter from stage one, which is not among the"
                f" sources: add {task} to them, or leave own_adapter out"
            )
        settings, own = recipe.gated, own_member(recipe, task, members)
        position, width = None if own is None else list(members).index(own), backbone.config.hidden_size
        start = settings.start_of(len(members) - (own is not None))
        make = partial(GatedFusion, settings.gate, width, len(members), position, start, settings.rank_in_effect)
        shared = make() if settings.shared else None
        replace_layers(backbone, members, lambda _: shared or make())

    def without_decay(self, backbone: PreTrainedModel) -> set[str]:
        # b_n is a number or a vector, which would not decay, but the vectors of all sources are stored as one matrix.
        return {
            f"{name}.bias"
            for name, module in backbone.named_modules()
            if isinstance(module, GatedFusion) and module.bias.requires_grad
        }

    def stock_lacks(self, recipe: Recipe, files: Collection[str]) -> str:
        return "AdapterHub has no fusion with a gate for each token" if recipe.gated.gate == "token" else ""

    @torch.no_grad()
    def as_adapters(self, backbone: PreTrainedModel, members: Sequence[str]) -> list[dict[str, Tensor]]:
        # ``sum_n g_n (U_n f(D_n x + b_n) + c_n)`` is one adapter: the rows of all D_n, and the columns of all g_n U_n.
        joined = []
        for site, fusion in fused_sites(backbone, members):
            adapters = [site.adapters[name] for name in members]
            # The columns of U_n, then c_n.
            ups = [torch.cat([each.adapter_up.weight, each.adapter_up.bias.unsqueeze(-1)], dim=1) for each in adapters]
            for number, gate in zip(fusion.gated, fusion.fixed_gates(len(ups[0])), strict=True):
                ups[number] = gate @ ups[number]
            joined.append(
                {
                    "down.weight": torch.cat([each.adapter_down[0].weight for each in adapters]),
                    "down.bias": torch.cat([each.adapter_down[0].bias for each in adapters]),
                    "up.weight": torch.cat([up[:, :-1] for up in ups], dim=1),
                    "up.bias": torch.stack([up[:, -1] for up in ups]).sum(dim=0),
                }
            )
        return joined


FORM = Gated()


def own_member(recipe: Recipe, task: str, members: Collection[str]) -> str | None:
    """The member that a fusion for ``task`` leaves ungated, if any."""
    return task if task in members and recipe.form.own_adapter != "none" else None


class GatedFusion(FusionLayer):
    """Drop-in replacement for AdapterHub's fusion layer at one site.

    Args:
        width: d.
        size: N, the number of fused adapters.
        own: the position of the target's adapter, which has no gate; None: all adapters have one.
        start: the initial b_n.
        rank: r of M_n, at most d; None: M_n is not factorised, or the gates are not matrices.
    """

    def __init__(
        self, kind: Gate, width: int, size: int, own: int | None, start: float, rank: int | None = None
    ) -> None:
        super().__init__()
        self.kind, self.own = kind, own
        self.gated = [n for n in range(size) if n != own]
        count = len(self.gated)
        self.bias = nn.Parameter(torch.full((count, width) if kind == "vector" else (count,), start))
        self.weight = nn.Parameter(torch.zeros(count, width)) if kind == "token" else None
        # M_n, or its factors A_n and B_n if it has a rank.
        self.matrix = nn.Parameter(torch.zeros(count, width, rank or width)) if kind == "matrix" else None
        self.factor = nn.Parameter(torch.randn(count, rank, width) * width**-0.5) if rank is not None else None

    def gates(self, query: Tensor) -> Tensor:
        """The factors on the gated z_n (B, T, n, d) for ``query`` (B, T, d): (B, T, n, 1), (n, 1) or (n, d)."""
        if self.weight is not None:
            return nn.functional.linear(query, self.weight, self.bias).unsqueeze(-1)
        return self.bias if self.kind == "vector" else self.bias.unsqueeze(-1)

    def fixed_gates(self, width: int) -> Tensor:
        """The g_n that do not depend on the token, as matrices (n, d, d); ``width`` is d."""
        diagonals = self.bias.reshape(len(self.gated), -1).expand(-1, width).diag_embed()
        if self.matrix is None:
            return diagonals
        return diagonals + (self.matrix if self.factor is None else self.matrix @ self.factor)

    def _turned(self, outputs: Tensor) -> Tensor:
        """``M_n z_n`` for ``outputs`` of each gated adapter, (n, k, d)."""
        assert self.matrix is not None
        return (outputs if self.factor is None else outputs @ self.factor.mT) @ self.matrix.mT

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, residual: Tensor, output_attentions: bool = False
    ) -> Any:
        """AdapterHub's signature: ``query``, ``residual`` (B, T, d); ``value`` the z_n, (B, T, N, d); ``key`` unused.

        Instead of attention it returns each adapter's share of the sum, (B, T, N): the norm of its term over the sum of
        all norms.
        """
        gated = value[:, :, self.gated]
        terms = self.gates(query) * gated
        if self.matrix is not None:
            turned = self._turned(gated.movedim(2, 0).flatten(1, 2))
            terms = terms + turned.unflatten(1, gated.shape[:2]).movedim(0, 2)
        if self.own is not None:
            terms = torch.cat([terms, value[:, :, self.own : self.own + 1]], dim=2)
        fused = terms.sum(2) + residual
        if not output_attentions:
            return fused
        lengths = terms.detach().float().norm(dim=-1)
        order = [*self.gated, *([] if self.own is None else [self.own])]
        shares = lengths[..., torch.tensor(order).argsort()] / lengths.sum(-1, keepdim=True).clamp(min=1e-12)
        return fused, shares.cpu().numpy()

    def mixed(self, bank: AdapterBank, hidden: Tensor, query: Tensor) -> Tensor:
        """``sum_n g_n z_n`` (B, T, d) of the frozen adapters in ``bank``, without computing the z_n."""
        active = bank.activation(nn.functional.linear(hidden, bank.down, bank.bias)).unflatten(-1, (bank.size, -1))
        gates, up = self.gates(query), bank.up
        if self.weight is None:
            # One factor for each row of ``up``: a unit of an adapter, its c_n, or padding.
            rows = [gates.repeat_interleave(bank.bottleneck, dim=0), gates]
            padding = gates.new_zeros(len(up) - bank.units - bank.size, gates.shape[-1])
            up = up * torch.cat([*rows, padding])
            if self.matrix is not None:
                # Each row of ``up`` times its matrix: computed once per step, not once per token.
                units, shifts, rest = bank.up.split([bank.units, bank.size, len(padding)])
                with torch.autocast(units.device.type, enabled=False):  # rounded once, when it is used
                    turned = self._turned(torch.cat([units.unflatten(0, (bank.size, -1)), shifts.unsqueeze(1)], dim=1))
                up = up + torch.cat([turned[:, :-1].flatten(0, 1), turned[:, -1], rest])
            gates = active.new_ones(*active.shape[:-1], 1)
        padded = nn.functional.pad(gates.squeeze(-1), (0, len(up) - bank.units - bank.size))
        return torch.cat([(active * gates).flatten(-2), padded.to(active.dtype)], dim=-1) @ up

    def over(self, kept: Sequence[int]) -> Self:
        part = copy.deepcopy(self)
        rows = [self.gated.index(n) for n in kept if n != self.own]
        part.own = next((position for position, n in enumerate(kept) if n == self.own), None)
        part.gated = [n for n in range(len(kept)) if n != part.own]
        for name, parameter in self.named_parameters():
            setattr(part, name, nn.Parameter(parameter.detach()[rows], parameter.requires_grad))
        return part


@torch.no_grad()
def set_gates(backbone: PreTrainedModel, members: Sequence[str], gates: Mapping[str, float]) -> None:
    """Set b_n at all sites of the gated fusion over ``members`` to ``gates``, and to 0 for members not in it."""
    for _, fusion in fused_sites(backbone, members):
        for row, member in zip(fusion.bias, fusion.gated, strict=True):
            row.fill_(gates.get(members[member], 0.0))
