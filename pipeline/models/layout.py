"""Where BERT, RoBERTa and DistilBERT keep the parts of a layer that methods hook into."""

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


class Attention(NamedTuple):
    """The self-attention of a layer, its key and value projections, and the name of its mask argument."""

    module: nn.Module
    key: nn.Module
    value: nn.Module
    mask: str


def stack_of(backbone: nn.Module) -> Any:
    """The module that runs the layers, which it holds as ``layer``; DistilBERT has another name for it."""
    return backbone.transformer if hasattr(backbone, "transformer") else backbone.encoder


def layers_of(backbone: nn.Module) -> Sequence[Any]:
    """The layers from the bottom up."""
    layers: Sequence[Any] = stack_of(backbone).layer
    return layers


def kept_indices(backbone: nn.Module, drop_layers: Collection[int]) -> list[int]:
    """The numbers of the layers without ``drop_layers``, from the bottom up."""
    return [index for index in range(len(layers_of(backbone))) if index not in drop_layers]


def kept_layers(backbone: nn.Module, drop_layers: Collection[int]) -> list[Any]:
    """The layers without ``drop_layers``."""
    return [layers_of(backbone)[index] for index in kept_indices(backbone, drop_layers)]


def norms_of(layer: Any) -> tuple[nn.LayerNorm, nn.LayerNorm]:
    """LN1, after attention, and LN2, after the FFN."""
    if hasattr(layer, "sa_layer_norm"):
        return layer.sa_layer_norm, layer.output_layer_norm
    return layer.attention.output.LayerNorm, layer.output.LayerNorm


def attention_of(layer: Any) -> Attention:
    if hasattr(layer.attention, "k_lin"):
        return Attention(layer.attention, layer.attention.k_lin, layer.attention.v_lin, "mask")
    module = layer.attention.self
    return Attention(module, module.key, module.value, "attention_mask")


def mask_by_query(mask: Tensor | None) -> Tensor | None:
    """The mask a layer is given, in a shape that broadcasts over (B, heads, T, T): additive, or true where visible.

    None is a batch without padding. Attention that is not fused may be given (B, T) of zeros and ones.
    """
    if mask is None or mask.is_floating_point():
        return mask
    mask = mask.to(torch.bool)
    return mask[:, None, None, :] if mask.ndim == 2 else mask
