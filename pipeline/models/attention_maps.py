"""Self-attention maps: each token's attention over all tokens, after the softmax, averaged over heads, by layer."""

import numpy as np
import torch
from transformers import PreTrainedModel

from pipeline.data.tokens import Tokenizer


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
