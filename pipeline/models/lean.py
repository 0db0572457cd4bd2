"""make_lean: an encoder that computes the same function with less work.

With CLS pooling, or the pooler, the last layer is computed for the first token alone, since nothing reads the others.
Attention with dropout is written out on a CPU, where torch's fused attention has none and takes a slower path.

No parameter, name or random number changes: dropout draws the same masks from the same generator, also for tokens that
nothing reads, so a seed trains the same model. For the backward pass it keeps one byte per number instead of four.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from pipeline.data.tasks import Pooling


def make_lean(encoder: PreTrainedModel, pooling: Pooling) -> None:
    """Patch ``encoder`` in place, after its adapters were added; call again to change it for another ``pooling``.

    With pooling "cls" or "pooler" its ``last_hidden_state`` is then (B, 1, d). Families whose layers differ
    from BERT's keep their own attention and last layer.
    """
    for module in encoder.modules():
        if type(module) is nn.Dropout:
            module.__class__ = Dropout
        if isinstance(module, Dropout):
            module.tokens = None
    layers = getattr(getattr(encoder, "encoder", None), "layer", ())
    for index, layer in enumerate(layers):
        attention = layer.attention
        if getattr(attention.self, "position_embedding_type", None) != "absolute":
            continue
        first_only = pooling in ("cls", "pooler") and index == len(layers) - 1
        dropouts = [each for each in layer.modules() if isinstance(each, Dropout)] if first_only else []
        attention.self.forward = partial(_lean_attention, attention.self, first_only, dropouts)
        if not hasattr(attention, "narrows"):
            attention.narrows = attention.output.register_forward_pre_hook(_narrow_residual)


class Dropout(nn.Dropout):
    """Dropout that keeps one byte per number for the backward pass on a CPU.

    ``tokens`` is T where the input (B, 1, d) is the first of T tokens; masks are then drawn for all T.
    """

    tokens: int | None = None

    def forward(self, input: Tensor) -> Tensor:
        return dropout(input, self.p, self.training, self.tokens)


def dropout(values: Tensor, probability: float, training: bool, tokens: int | None = None) -> Tensor:
    """``values`` with each number zeroed with ``probability`` and the rest scaled to keep the mean.

    On a CPU the mask is the one that ``torch.nn.functional.dropout`` draws. ``tokens`` is T where the values are the
    first row (..., 1, n) of (..., T, n): a mask for all T is drawn, so that random numbers that follow are the same.
    """
    if not training or probability == 0:
        return values
    if values.device.type != "cpu" or probability == 1:
        return F.dropout(values, probability, training)
    shape = values.shape if tokens is None else (*values.shape[:-2], tokens, values.shape[-1])
    keep = torch.empty(shape, dtype=torch.bool).bernoulli_(1 - probability)
    if tokens is not None:
        keep = keep[..., :1, :].clone()  # a view would hold the whole mask until the backward pass
    return (values * keep).mul_(1 / (1 - probability))


def _lean_attention(
    module: Any,
    first_only: bool,
    dropouts: Sequence[Dropout],
    hidden_states: Tensor,
    attention_mask: Tensor | None = None,
    *args: Any,
    **keywords: Any,
) -> tuple[Any, ...]:
    """``forward`` of a BERT or RoBERTa self-attention; with ``first_only`` for the first token alone.

    ``dropouts``, those of the layer, are then told how many tokens the first one stands for. What is not covered here
    (AdapterHub's prefixes, attention maps, masked heads, decoding) goes to the module's own forward.
    """
    prefixes = getattr(getattr(module, "prefix_tuning", None), "prefixes", None)
    unsupported = prefixes or any(value is not None and value is not False for value in (*args, *keywords.values()))
    tokens = hidden_states.shape[1] if first_only and not unsupported else None
    for each in dropouts:
        each.tokens = tokens
    if unsupported:
        return type(module).forward(module, hidden_states, attention_mask, *args, **keywords)
    asking = hidden_states[:, :1] if first_only else hidden_states
    query, key, value = (
        states.unflatten(-1, (module.num_attention_heads, -1)).transpose(1, 2)  # (B, heads, T, d / heads)
        for states in (module.query(asking), module.key(hidden_states), module.value(hidden_states))
    )
    if attention_mask is not None:
        attention_mask = attention_mask[:, :, : asking.shape[1]]  # (B, 1, T or 1, T)
        if attention_mask.shape[0] < hidden_states.shape[0]:  # not len(): an exporter would take it for a constant
            # Adapters in parallel multiply the batch, stream after stream.
            attention_mask = attention_mask.repeat(hidden_states.shape[0] // attention_mask.shape[0], 1, 1, 1)
    probability = module.dropout.p if module.training else 0.0
    context = _attend(query, key, value, attention_mask, probability, tokens)
    return context.transpose(1, 2).flatten(2), None


def _attend(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, probability: float, tokens: int | None
) -> Tensor:
    if probability == 0 or query.device.type != "cpu":
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=probability)
    scores = (query / math.sqrt(query.shape[-1])) @ key.transpose(-2, -1)
    if mask is not None:
        scores = scores + mask
    return dropout(scores.softmax(-1), probability, True, tokens).to(value.dtype) @ value


def _narrow_residual(module: nn.Module, inputs: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Where attention gave its output for the first tokens alone, keep the residual of those alone."""
    context, residual = inputs
    return context, residual[:, : context.shape[1]]
