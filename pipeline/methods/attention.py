"""Attention to look at: of a trained fusion over its adapters, site by site, and of a backbone over its tokens."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from adapters.composition import Fuse
from torch import Tensor
from transformers import PreTrainedModel

from pipeline.data.tokens import Tokenizer

_PLACES = {"mh_adapter": "attention", "output_adapter": "ffn"}  # AdapterHub's names


Site = tuple[int, str]
"""A layer, and "attention" or "ffn": the sub-layer that the site follows."""


@torch.inference_mode()
def site_attention(
    backbone: PreTrainedModel, sources: Sequence[str], batches: Iterable[dict[str, Tensor]]
) -> dict[Site, tuple[np.ndarray, int]]:
    """The softmax at every site of the active fusion, from the bottom up, summed over tokens (N,), and their number.

    Padding is ignored. The backbone must be in fp32: AdapterHub returns numpy arrays, which have no bf16.
    """
    totals: dict[Site, Any] = defaultdict(float)
    tokens: dict[Site, int] = defaultdict(int)
    for inputs in batches:
        mask = inputs["attention_mask"].bool().cpu().numpy()
        for site, attention in _attention_by_site(backbone, sources, inputs).items():
            # The last layer may have been computed for the first token alone.
            seen = attention[mask[:, : attention.shape[1]]]
            totals[site] += seen.sum(axis=0, dtype=np.float64)
            tokens[site] += len(seen)
    return {site: (totals[site], tokens[site]) for site in sorted(totals)}


def _attention_by_site(
    backbone: PreTrainedModel, sources: Sequence[str], inputs: dict[str, Tensor]
) -> dict[Site, np.ndarray]:
    """The softmax (B, T, N) of the active fusion at each site, by layer and place."""
    outputs = backbone(**inputs, output_adapter_fusion_attentions=True)
    layers = outputs.adapter_fusion_attentions[Fuse(*sources).name]
    return {(layer, _PLACES[name]): each for layer, sites in layers.items() for name, each in sites.items()}


@torch.inference_mode()
def token_attention(
    backbone: PreTrainedModel, sources: Sequence[str], inputs: dict[str, Tensor], tokens: Sequence[str]
) -> pd.DataFrame:
    """Each token's attention to each source, at every site of the active fusion, for one input.

    Columns ``position``, ``token``, ``layer``, ``site``, ``adapter``, ``share``. The shares of a token at a site add up
    to one. Under CLS pooling the last layer computes only its first token and has no rows for the others.

    Args:
        inputs: tensors (1, T) without padding; the backbone must be in fp32, as for :func:`site_attention`.
        tokens: the T tokens as text.
    """
    rows = [
        (position, tokens[position], layer, place, name, share)
        for (layer, place), attention in sorted(_attention_by_site(backbone, sources, inputs).items())
        for position, shares in enumerate(attention[0].tolist())
        for name, share in zip(sources, shares, strict=True)
    ]
    return pd.DataFrame(rows, columns=["position", "token", "layer", "site", "adapter", "share"])


def attention_table(sites: Mapping[Site, tuple[np.ndarray, int]], sources: Sequence[str]) -> pd.DataFrame:
    """Columns ``layer``, ``site``, ``adapter``, ``weight``: the mean over tokens, which adds up to one per site."""
    rows = [
        (layer, place, name, weight)
        for (layer, place), (total, tokens) in sites.items()
        for name, weight in zip(sources, (total / tokens).tolist(), strict=True)
    ]
    return pd.DataFrame(rows, columns=["layer", "site", "adapter", "weight"])


def source_shares(
    backbone: PreTrainedModel, sources: Sequence[str], batches: Iterable[dict[str, Tensor]]
) -> dict[str, float]:
    """The attention to each source, averaged over tokens and sites; the shares add up to one."""
    totals, tokens = zip(*site_attention(backbone, sources, batches).values(), strict=True)
    return dict(zip(sources, (sum(totals, np.zeros(len(sources))) / sum(tokens)).tolist(), strict=True))


@torch.inference_mode()
def attention_maps(
    backbone: PreTrainedModel, tokenizer: Tokenizer, *texts: str, max_length: int
) -> tuple[list[str], dict[int, np.ndarray]]:
    """The T tokens of one text, or of a pair as one input, and their attention (T, S) by layer, counted from 1.

    Layers are the lowest, middle and highest: 1, 6 and 12 of 12 (Liu & Shen 2023). The S weights of each token add up
    to one. S is T, or more in a layer that has a prefix before the tokens.
    """
    encoded = tokenizer.fast(
        *texts,
        truncation="longest_first",
        max_length=max_length,
        return_tensors="pt",
        return_token_type_ids=tokenizer.token_types,
    )
    attentions, depth = backbone(**encoded, output_attentions=True).attentions, backbone.config.num_hidden_layers
    shown = sorted({1, -(-depth // 2), depth})
    maps = {layer: attentions[layer - 1][0].float().mean(dim=0).cpu().numpy() for layer in shown}
    return tokenizer.fast.convert_ids_to_tokens(encoded["input_ids"][0].tolist()), maps
