"""Self-attention maps: each token's attention over all tokens, after the softmax, averaged over heads, by layer."""

from collections.abc import Sequence

import numpy as np
import torch
from transformers import PreTrainedModel

from pipeline.data.tokens import Tokenizer


def shown_layers(depth: int) -> list[int]:
    """The lowest, middle and highest of ``depth`` layers, counted from 1: 1, 6 and 12 of 12 (Liu & Shen 2023)."""
    return sorted({1, -(-depth // 2), depth})


@torch.inference_mode()
def attention_maps(
    backbone: PreTrainedModel, inputs: dict[str, torch.Tensor], layers: Sequence[int]
) -> dict[int, np.ndarray]:
    """Attention (T, S) of one input by layer, counted from 1; the S weights of each of the T tokens add up to one.

    S is T, or more in a layer that has a prefix before the tokens. ``inputs`` has one row, without padding.
    """
    attentions = backbone(**inputs, output_attentions=True).attentions
    return {layer: attentions[layer - 1][0].float().mean(dim=0).cpu().numpy() for layer in layers}


def one_input(tokenizer: Tokenizer, *texts: str, max_length: int) -> tuple[dict[str, torch.Tensor], list[str]]:
    """The backbone's input for one text, or for a pair as one input, and its tokens as text."""
    encoded = tokenizer.fast(
        *texts,
        truncation="longest_first",
        max_length=max_length,
        return_tensors="pt",
        return_token_type_ids=tokenizer.token_types,
    )
    return dict(encoded), tokenizer.fast.convert_ids_to_tokens(encoded["input_ids"][0].tolist())
