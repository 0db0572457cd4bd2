"""make_lean: an encoder that computes the same function with less work.

With CLS pooling, or the pooler, the last layer is computed for the first token alone, since nothing reads the others.
On a CPU, attention with dropout is written out, because torch's fused attention has no dropout there and would take a
slower path. Dropout decides on four numbers with each random word, and keeps one byte per number for the backward pass
instead of four. A batch may be packed (:mod:`unpadding`).

Parameters and their names do not change.
"""

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from pipeline.data.tasks import Pooling
from pipeline.models.unpadding import Packed, current_packed


def make_lean(encoder: PreTrainedModel, pooling: Pooling) -> None:
    """Patch ``encoder`` in place, after adding its adapters; call it again to switch to another ``pooling``.

    With pooling "cls" or "pooler" its ``last_hidden_state`` is then (B, 1, d). Families whose layers differ
    from BERT's keep their own attention and last layer.
    """
    for module in encoder.modules():
        if type(module) is nn.Dropout:
            module.__class__ = Dropout
    layers = getattr(getattr(encoder, "encoder", None), "layer", ())
    for index, layer in enumerate(layers):
        attention = layer.attention
        if getattr(attention.self, "position_embedding_type", None) != "absolute":
            continue
        first_only = pooling in ("cls", "pooler") and index == len(layers) - 1
        attention.self.forward = partial(_lean_attention, attention.self, first_only)
        if not hasattr(attention, "narrows"):
            attention.narrows = attention.output.register_forward_pre_hook(_narrow_residual)


class Dropout(nn.Dropout):
    """Dropout that keeps one byte per number for the backward pass on a CPU."""

    def forward(self, input: Tensor) -> Tensor:
        return dropout(input, self.p, self.training)


def dropout(values: Tensor, probability: float, training: bool) -> Tensor:
    """``values`` with each number zeroed with ``probability`` and the rest scaled to keep the mean.

    On a CPU the probability is rounded to a multiple of 2^-16: a random word of 64 bits decides on four numbers.
    """
    if not training or probability == 0:
        return values
    if values.device.type != "cpu" or probability == 1:
        return F.dropout(values, probability, training)
    kept = min(max(round((1 - probability) * 2**16), 1), 2**16 - 1)
    words = torch.empty(-(-values.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    keep = words.view(torch.int16)[: values.numel()].view(values.shape) < kept - 2**15
    return (values * keep).mul_(2**16 / kept)


def _lean_attention(
    module: Any,
    first_only: bool,
    hidden_states: Tensor,
    attention_mask: Tensor | None = None,
    *args: Any,
    **keywords: Any,
) -> tuple[Any, ...]:
    """``forward`` of a BERT or RoBERTa self-attention; with ``first_only`` for the first token alone.

    Falls back to the module's own forward for AdapterHub's prefixes, attention maps, masked heads and decoding.
    """
    if (packed := current_packed()) is not None:
        return _packed_attention(module, first_only, packed, hidden_states), None
    prefixes = getattr(getattr(module, "prefix_tuning", None), "prefixes", None)
    if prefixes or any(value is not None and value is not False for value in (*args, *keywords.values())):
        return type(module).forward(module, hidden_states, attention_mask, *args, **keywords)
    asking = hidden_states[:, :1] if first_only else hidden_states
    query, key, value = (
        _by_head(module, states)
        for states in (module.query(asking), module.key(hidden_states), module.value(hidden_states))
    )
    if attention_mask is not None:
        attention_mask = attention_mask[:, :, : asking.shape[1]]  # (B, 1, T or 1, T)
        if attention_mask.shape[0] < hidden_states.shape[0]:  # not len(): an exporter would take it for a constant
            # Adapters in parallel multiply the batch, stream after stream.
            attention_mask = attention_mask.repeat(hidden_states.shape[0] // attention_mask.shape[0], 1, 1, 1)
    context = _attend(query, key, value, attention_mask, module.dropout.p if module.training else 0.0)
    return context.transpose(1, 2).flatten(2), None


def _packed_attention(module: Any, first_only: bool, packed: Packed, hidden_states: Tensor) -> Tensor:
    """The context (1, N, d) of a packed batch, or of its inputs' first tokens alone, (1, B, d)."""
    asking = hidden_states[:, packed.firsts] if first_only else hidden_states
    query, key, value = module.query(asking)[0], module.key(hidden_states)[0], module.value(hidden_states)[0]
    probability = module.dropout.p if module.training else 0.0
    contexts: list[Tensor] = []
    for group in packed.groups:
        asked = query[group.inputs].unsqueeze(1) if first_only else group.pad(query)
        queries, keys, values = (_by_head(module, states) for states in (asked, group.pad(key), group.pad(value)))
        context = _attend(queries, keys, values, group.mask, probability).transpose(1, 2).flatten(2)
        contexts.append(context.squeeze(1) if first_only else group.unpad(context))
    if not first_only:
        contexts.append(query.new_zeros(len(query) - packed.count, query.shape[1]))
    return torch.cat(contexts).unsqueeze(0)


def _by_head(module: Any, states: Tensor) -> Tensor:
    """(B, heads, T, d / heads) of (B, T, d)."""
    return states.unflatten(-1, (module.num_attention_heads, -1)).transpose(1, 2)


def _attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, probability: float) -> Tensor:
    if probability == 0 or query.device.type != "cpu":
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=probability)
    scores = (query / math.sqrt(query.shape[-1])) @ key.transpose(-2, -1)
    if mask is not None:
        scores = scores + mask
    return dropout(scores.softmax(-1), probability, True).to(value.dtype) @ value


def _narrow_residual(module: nn.Module, inputs: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """If attention returned only the first tokens, keep only their residual."""
    context, residual = inputs
    if context.shape[1] == residual.shape[1]:
        return context, residual
    packed = current_packed()
    return context, residual[:, : context.shape[1]] if packed is None else residual[:, packed.firsts]
