"""make_lean: an encoder that computes the same function with less work.

Three things, none of which touches a parameter or a name: with CLS pooling the last layer is computed for the first
token alone, since nothing reads the others; dropout masks on a CPU come from 16 random bits a number instead of a
Bernoulli draw, which costs more there than the layer's LayerNorm, GELU and residuals together; and attention with
dropout is written out, because torch's fused attention has none on a CPU.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pipeline.tasks import Pooling

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_BITS = 16


def make_lean(encoder: PreTrainedModel, pooling: Pooling) -> None:
    """Change ``encoder`` in place, after its adapters are in it; call again to change for another ``pooling``.

    With pooling "cls" its ``last_hidden_state`` is then (B, 1, d). Families whose layers are not built as BERT's keep
    their own attention and last layer.
    """
    for module in encoder.modules():
        if type(module) is nn.Dropout:
            module.__class__ = Dropout
    layers = getattr(getattr(encoder, "encoder", None), "layer", ())
    for index, layer in enumerate(layers):
        attention = layer.attention
        if getattr(attention.self, "position_embedding_type", None) != "absolute":
            continue
        first_only = pooling == "cls" and index == len(layers) - 1
        attention.self.forward = LeanAttention(attention.self, first_only)
        if not hasattr(attention, "narrows"):
            attention.narrows = attention.output.register_forward_pre_hook(_narrow_residual)


class Dropout(nn.Dropout):
    """Dropout whose mask is drawn cheaply on a CPU; the probability is rounded to a multiple of 2**-16."""

    def forward(self, input: Tensor) -> Tensor:
        return dropout(input, self.p, self.training)


def dropout(values: Tensor, probability: float, training: bool) -> Tensor:
    """``values`` with each number zeroed with ``probability`` and the rest scaled to keep the mean.

    On a CPU the mask comes from torch's generator like any other random number, but as raw words.
    """
    threshold = round(probability * 2**_BITS)
    if not training or threshold == 0:
        return values
    if values.device.type != "cpu" or threshold == 2**_BITS:
        return F.dropout(values, probability, training)
    words = torch.empty(-(-values.numel() * _BITS // 64), dtype=torch.int64).random_(-(2**63), None)
    draws = words.view(torch.int16)[: values.numel()].view(values.shape)
    keep = draws >= threshold - 2 ** (_BITS - 1)
    return (values * keep).mul_(1 / (1 - threshold / 2**_BITS))


class LeanAttention:
    """Takes the place of ``forward`` of a BERT or RoBERTa self-attention.

    What it does not cover (prefixes, attention maps, masked heads, decoding) goes to the module's own forward.
    """

    def __init__(self, module: Any, first_only: bool) -> None:
        self._module = module
        self._own = type(module).forward
        self._first_only = first_only

    def __call__(
        self, hidden_states: Tensor, attention_mask: Tensor | None = None, *args: Any, **keywords: Any
    ) -> tuple[Any, ...]:
        module = self._module
        prefixes = getattr(getattr(module, "prefix_tuning", None), "prefixes", None)
        if prefixes or any(value is not None and value is not False for value in (*args, *keywords.values())):
            found: tuple[Any, ...] = self._own(module, hidden_states, attention_mask, *args, **keywords)
            return found
        asking = hidden_states[:, :1] if self._first_only else hidden_states
        query, key, value = (
            self._by_head(states)
            for states in (module.query(asking), module.key(hidden_states), module.value(hidden_states))
        )
        if attention_mask is not None:
            attention_mask = attention_mask[:, :, : asking.shape[1]]  # (B, 1, T or 1, T)
            if len(attention_mask) < len(hidden_states):
                # Adapters in parallel multiply the batch, stream after stream.
                attention_mask = attention_mask.repeat(len(hidden_states) // len(attention_mask), 1, 1, 1)
        context = _attend(query, key, value, attention_mask, module.dropout.p if module.training else 0.0)
        return context.transpose(1, 2).flatten(2), None

    def _by_head(self, states: Tensor) -> Tensor:
        """(B, T, d) as (B, heads, T, d / heads)."""
        return states.unflatten(-1, (self._module.num_attention_heads, -1)).transpose(1, 2)


def _attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, probability: float) -> Tensor:
    if probability == 0 or query.device.type != "cpu":
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=probability)
    scores = (query / math.sqrt(query.shape[-1])) @ key.transpose(-2, -1)
    if mask is not None:
        scores = scores + mask
    return dropout(scores.softmax(-1), probability, True).to(value.dtype) @ value


def _narrow_residual(module: nn.Module, inputs: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Where attention answered for the first tokens alone, the residual is theirs alone too."""
    context, residual = inputs
    return context, residual[:, : context.shape[1]]
