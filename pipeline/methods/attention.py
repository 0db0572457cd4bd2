"""The attention of a trained fusion over its adapters, averaged over the tokens of a split, site by site."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from adapters.composition import Fuse
from torch import Tensor
from transformers import PreTrainedModel

_PLACES = {"mh_adapter": "attention", "output_adapter": "ffn"}  # AdapterHub's names


@dataclass(frozen=True)
class SiteAttention:
    """``total`` (N,) is the sum of the softmax over N adapters over ``tokens`` tokens, after attention or the FFN."""

    layer: int
    place: str
    total: np.ndarray
    tokens: int


@torch.inference_mode()
def site_attention(
    backbone: PreTrainedModel, sources: Sequence[str], batches: Iterable[dict[str, Tensor]]
) -> list[SiteAttention]:
    """The attention of every site of the active fusion, from the bottom up, over the tokens of ``batches``.

    Padding does not count. The backbone is in fp32: AdapterHub returns attention as numpy arrays, which have no bf16.
    """
    totals: dict[tuple[int, str], Any] = defaultdict(float)
    tokens: dict[tuple[int, str], int] = defaultdict(int)
    for inputs in batches:
        outputs = backbone(**inputs, output_adapter_fusion_attentions=True)
        mask = inputs["attention_mask"].bool().cpu().numpy()
        for layer, sites in outputs.adapter_fusion_attentions[Fuse(*sources).name].items():
            for name, attention in sites.items():  # (B, T, N)
                # The last layer may have been computed for the first token alone.
                seen = attention[mask[:, : attention.shape[1]]]
                totals[layer, _PLACES[name]] += seen.sum(axis=0, dtype=np.float64)
                tokens[layer, _PLACES[name]] += len(seen)
    return [SiteAttention(*site, totals[site], tokens[site]) for site in sorted(totals)]


def attention_table(sites: Sequence[SiteAttention], sources: Sequence[str]) -> pd.DataFrame:
    """Columns ``layer``, ``site``, ``adapter``, ``weight``: the mean over tokens, which adds up to one per site."""
    rows = [
        (site.layer, site.place, name, weight)
        for site in sites
        for name, weight in zip(sources, (site.total / site.tokens).tolist(), strict=True)
    ]
    return pd.DataFrame(rows, columns=["layer", "site", "adapter", "weight"])


def source_shares(
    backbone: PreTrainedModel, sources: Sequence[str], batches: Iterable[dict[str, Tensor]]
) -> dict[str, float]:
    """The attention to each source, averaged over tokens and sites; the shares add up to one."""
    sites = site_attention(backbone, sources, batches)
    total = sum((site.total for site in sites), np.zeros(len(sources)))
    tokens = sum(site.tokens for site in sites)
    return dict(zip(sources, (total / tokens).tolist(), strict=True))
