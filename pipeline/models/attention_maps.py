"""Where each token of a text looks: attention after the softmax, averaged over heads, layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from pipeline.data.tokens import Tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def shown_layers(depth: int) -> list[int]:
    """The lowest, middle and highest of ``depth`` layers, counted from 1: 1, 6 and 12 of 12 (Liu & Shen 2023)."""
    return sorted({1, -(-depth // 2), depth})


@torch.inference_mode()
def attention_maps(
    backbone: PreTrainedModel, inputs: dict[str, torch.Tensor], layers: Sequence[int]
) -> dict[int, np.ndarray]:
    """Attention (T, S) of one input by layer, counted from 1: each of T tokens over S keys, which add up to one.

    S is T, or more where a prefix stands before the tokens of a layer. Asking for attention has the layers write it
    out; fused attention never holds it.

    Args:
        backbone: in evaluation mode, with what was trained in it.
        inputs: of one row, without padding.
    """
    found = backbone(**inputs, output_attentions=True).attentions
    return {layer: found[layer - 1][0].float().mean(dim=0).cpu().numpy() for layer in layers}


def one_input(tokenizer: Tokenizer, *texts: str, max_length: int) -> tuple[dict[str, torch.Tensor], list[str]]:
    """One text, or a pair as one input, as a backbone reads it, and its tokens in words."""
    encoded = tokenizer.fast(
        *texts,
        truncation="longest_first",
        max_length=max_length,
        return_tensors="pt",
        return_token_type_ids=tokenizer.token_types,
    )
    return dict(encoded), tokenizer.fast.convert_ids_to_tokens(encoded["input_ids"][0].tolist())
