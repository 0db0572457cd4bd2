"""Anchored fusion: AdapterFusion that is initialised to one adapter, with a fortieth of the weights.

AdapterFusion (Pfeiffer et al. 2021) is initialised to the mean of all adapters, which is worse than the target's
adapter, and needs 3d^2 weights per site to recover. Here, with frozen adapter outputs z_n and sub-layer output h::

    s = softmax_n(Q h . K z_n + b_n)        Q, K in R^{r x d}, K = 0 at the start
    o = (I + A B) sum_n s_n z_n             A in R^{d x r}, A = 0 at the start; B in R^{r x d}

``b`` is zero except for one adapter, the anchor, so the first forward pass is nearly that adapter's. Training learns
which tokens attend to the other adapters. 4rd + r + N weights per site instead of 3d^2 + 2d.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Self

import torch
from adapters.composition import Fuse
from adapters.methods.modeling import BertFusion
from torch import Tensor, nn
from transformers import PreTrainedModel

from pipeline.methods.saved import FusionLayer, FusionMethod, SavedModules, fused_sites, replace_layers, too_wide
from pipeline.methods.standard import FUSION_FILE
from pipeline.settings.recipe import Recipe

ANCHORED_FILE = "anchored_fusion.safetensors"


class Anchored(FusionMethod):
    """Anchored fusion; also saved as a standard fusion for stock AdapterHub if an equivalent one exists."""

    file = ANCHORED_FILE
    rank_key = "fusion_rank"  # in the flat recipe

    def misfit(self, recipe: Recipe, width: int) -> str:
        return too_wide(self.rank_key, recipe.flat()[self.rank_key], width)

    def put_in(
        self, backbone: PreTrainedModel, members: Sequence[str], task: str, recipe: Recipe, anchor: str | None
    ) -> None:
        bias = {} if anchor is None else {anchor: recipe.anchor.score}
        anchor_fusion(backbone, members, recipe.flat()[self.rank_key], bias)

    def save(self, backbone: PreTrainedModel, members: Sequence[str], saved: SavedModules) -> None:
        """Write AdapterHub's format too, if :func:`as_stock` finds weights for all sites."""
        super().save(backbone, members, saved)
        name, sites = Fuse(*members).name, fused_sites(backbone, members)
        stock = [as_stock(fusion, [site.adapters[member] for member in members]) for site, fusion in sites]
        if any(weights is None for weights in stock):
            return
        try:
            for (site, fusion), weights in zip(sites, stock, strict=True):
                layer = BertFusion(fusion.config, backbone.config.hidden_size, fusion.dropout.p)
                layer.load_state_dict(weights)
                site.adapter_fusion_layer[name] = layer
            backbone.save_adapter_fusion(str(saved.folder), Fuse(*members), use_safetensors=True)
        finally:
            for site, fusion in sites:
                site.adapter_fusion_layer[name] = fusion

    def stock_lacks(self, recipe: Recipe, files: Collection[str]) -> str:
        if FUSION_FILE in files:
            return ""
        return "its fusion has a bias for each adapter, which AdapterHub's layer cannot express for so many adapters"


FORM = Anchored()


class AnchoredFusion(FusionLayer):
    """Drop-in replacement for AdapterHub's fusion layer with the same ``config`` at one site.

    ``width`` is d, ``rank`` r, and ``bias`` (N,) the initial b. Dropout applies to the scores, before the softmax.
    """

    def __init__(self, config: Any, width: int, rank: int, bias: Tensor, dropout: float) -> None:
        super().__init__()
        self.config = config
        self.query = nn.Linear(width, rank)
        self.key = nn.Linear(width, rank, bias=False)
        self.score_bias = nn.Parameter(bias.clone())
        self.value_down = nn.Linear(width, rank, bias=False)
        self.value_up = nn.Linear(rank, width, bias=False)
        self.dropout = nn.Dropout(dropout)
        for random in (self.query, self.value_down):
            nn.init.normal_(random.weight, std=width**-0.5)
        for zero in (self.query.bias, self.key.weight, self.value_up.weight):
            nn.init.zeros_(zero)

    def value_weight(self) -> Tensor:
        """``I + A B`` (d, d)."""
        product = self.value_up.weight @ self.value_down.weight
        return torch.eye(len(product), dtype=product.dtype, device=product.device) + product

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, residual: Tensor, output_attentions: bool = False
    ) -> Any:
        """AdapterHub's signature: ``query``, ``residual`` (B, T, d); ``key`` and ``value`` the z_n, (B, T, N, d)."""
        scores = (self.key(key) @ self.query(query).unsqueeze(-1)).squeeze(-1) + self.score_bias  # (B, T, N)
        attention = self.dropout(scores).softmax(dim=-1)
        mixed = (attention.unsqueeze(-2) @ value).squeeze(-2)
        fused = mixed + self.value_up(self.value_down(mixed)) + residual
        return (fused, attention.detach().float().cpu().numpy()) if output_attentions else fused

    def over(self, kept: Sequence[int]) -> Self:
        part = copy.deepcopy(self)
        part.score_bias = nn.Parameter(self.score_bias.detach()[list(kept)], self.score_bias.requires_grad)
        return part


def anchor_fusion(backbone: PreTrainedModel, sources: Sequence[str], rank: int, bias: Mapping[str, float]) -> None:
    """Replace AdapterHub's fusion layers in ``backbone`` with fresh, trainable anchored ones.

    ``rank`` is at most the backbone's width. ``bias`` is the initial b by source, zero for sources not in it.
    """
    width = backbone.config.hidden_size
    start = torch.tensor([bias.get(source, 0.0) for source in sources])
    replace_layers(backbone, sources, lambda stock: AnchoredFusion(stock.config, width, rank, start, stock.dropout.p))


@torch.no_grad()
def as_stock(fusion: AnchoredFusion, adapters: Sequence[Any]) -> dict[str, Tensor] | None:
    """Weights that make AdapterHub's fusion layer compute the same function, or None if there are none.

    Q and K are padded with rows of zeros. AdapterHub's layer has no bias per adapter; but z_n = U_n a_n + c_n, so a row
    w of K with ``w U_n = 0`` and ``w c_n = b_n`` adds b_n to each score if the query is one there. Such a row exists if
    the columns of all U_n and the c_n are linearly independent, which requires N (m + 1) <= d.
    """
    rank, width = fusion.key.weight.shape
    ups = [adapter.adapter_up.weight.T for adapter in adapters]
    shifts = torch.stack([adapter.adapter_up.bias for adapter in adapters])
    system = torch.cat([*ups, shifts]).double().cpu()  # (N m + N, d)
    wanted = torch.cat([system.new_zeros(len(system) - len(adapters)), fusion.score_bias.double().cpu()])
    row = torch.linalg.lstsq(system, wanted.unsqueeze(-1), driver="gelsd").solution.squeeze(-1)
    if rank >= width or not torch.allclose(system @ row, wanted, rtol=0, atol=1e-6):
        return None
    query, key = torch.zeros(width, width), torch.zeros(width, width)
    query_bias = torch.zeros(width)
    query[:rank], query_bias[:rank] = fusion.query.weight, fusion.query.bias
    key[:rank], key[rank], query_bias[rank] = fusion.key.weight, row.float(), 1.0
    return {
        "query.weight": query,
        "query.bias": query_bias,
        "key.weight": key,
        "key.bias": torch.zeros(width),
        "value.weight": fusion.value_weight(),
    }
