"""An encoder that computes the same function with less work: :func:`make_lean`, and batches without padding.

With CLS pooling, or the pooler, the last layer is computed for the first token alone, since nothing reads the others.
On a CPU, attention with dropout is written out, because torch's fused attention has no dropout there and would take a
slower path. Dropout decides on four numbers with each random word, and keeps one byte per number for the backward pass
instead of four. Parameters and their names do not change.

A batch may be packed into one sequence, without its padding, for all but attention (Zeng et al. 2022). Everything in a
BERT layer but attention treats each token by itself, so a batch (B, T) may as well be one sequence of its N tokens.
Attention takes inputs in groups of similar length, each padded separately. In a batch of mixed lengths easily half of
the tokens are padding; a packed batch costs only its real tokens.
"""

from __future__ import annotations

import math
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointWrapper
from torch.nn import functional as F
from transformers import PreTrainedModel

from pipeline.data.batches import micro_batches
from pipeline.data.tasks import Pooling
from pipeline.models.layout import layers_of

_MOST_PADDED_SCORES = 8192
"""With more attention scores of padding than this, per head, two smaller groups are faster than one (MiniLM)."""

_TOKENS = 32
"""Packed sequences are filled up to a multiple of this, so that matrix products have few shapes to prepare."""

_current: ContextVar[Packed | None] = ContextVar("packed", default=None)
"""The packed batch that lean encoders are computing; None: a padded batch."""


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


def can_unpad(encoder: Any) -> bool:
    """Whether every layer of ``encoder`` can take a packed sequence: it is lean, and mixes tokens in attention alone.

    It cannot with prefixes, which precede each input's keys, with gates that average over an input's tokens (UniPELT),
    or with task-specific attention (PAL).
    """
    if getattr(encoder, "is_gradient_checkpointing", False):  # the backward pass recomputes single layers
        return False
    layers = layers_of(encoder)
    lean = all(hasattr(getattr(layer, "attention", None), "narrows") for layer in layers)
    modules, mixing = [*encoder.modules()], ("use_gating", "prefixes", "mixes_tokens")
    if any(isinstance(module, CheckpointWrapper) for module in modules):
        return False
    return lean and bool(layers) and not any(getattr(module, name, None) for module in modules for name in mixing)


def unpadded_states(encoder: Any, inputs: dict[str, Tensor]) -> Tensor:
    """The last hidden states of a lean ``encoder``, computed without padding, where they are zero.

    (B, T, d) of inputs (B, T), or (B, 1, d) if the last layer computes the first token alone.
    """
    packed, types = Packed.of(inputs["attention_mask"]), inputs.get("token_type_ids")
    ids = packed.take(inputs["input_ids"])
    # RoBERTa counts positions from its padding index + 1.
    first = getattr(encoder.embeddings, "padding_idx", None)
    token = _current.set(packed)
    try:
        states = encoder(
            input_ids=ids,
            token_type_ids=torch.zeros_like(ids) if types is None else packed.take(types),
            position_ids=(packed.positions if first is None else packed.positions + first + 1).unsqueeze(0),
        ).last_hidden_state
    finally:
        _current.reset(token)
    return packed.padded(states)


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
    if (packed := _current.get()) is not None:
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
    packed = _current.get()
    return context, residual[:, : context.shape[1]] if packed is None else residual[:, packed.firsts]


@dataclass(frozen=True)
class Group:
    """Inputs of similar length, whose attention is computed together."""

    inputs: slice
    """Their places in the packed order."""
    tokens: slice
    """The places of their tokens in the packed sequence."""
    places: Tensor | None
    """The index of each token in the group's (b T); None: there is no padding."""
    length: int
    mask: Tensor | None
    """(b, 1, 1, T), added to scores."""

    def pad(self, packed: Tensor) -> Tensor:
        """The group's part of the packed (N, k) as (b, T, k), with zeros for padding."""
        part = packed[self.tokens]
        if self.places is None:
            return part.unflatten(0, (-1, self.length))
        count = self.inputs.stop - self.inputs.start
        return _scattered(part, self.places, count * self.length).unflatten(0, (count, self.length))

    def unpad(self, padded: Tensor) -> Tensor:
        """The tokens (n, k) of (b, T, k) in the packed order."""
        flat = padded.flatten(0, 1)
        return flat if self.places is None else _Gathered.apply(flat, self.places)


@dataclass(frozen=True)
class Packed:
    """How the n tokens of a batch (B, T) are packed: input after input, from the shortest to the longest.

    They are filled up to N tokens; nothing reads the last N - n.
    """

    shape: torch.Size
    places: Tensor
    """The index of each packed token in the batch's (B T); (N,)."""
    count: int
    """n, the tokens of the batch."""
    order: Tensor
    """Which input of the batch is packed first, second, ..., (B,)."""
    firsts: Tensor
    """Where each input begins in the packed sequence, (B,)."""
    positions: Tensor
    """The position of each token in its own input, from 0, (N,)."""
    groups: tuple[Group, ...]

    @classmethod
    def of(cls, attention_mask: Tensor) -> Packed:
        """Pack a batch that is padded on the right; the mask (B, T) holds zeros and ones."""
        lengths = attention_mask.sum(dim=1).numpy()
        order = np.argsort(lengths, kind="stable")
        ascending = lengths[order]
        firsts = np.concatenate([[0], np.cumsum(ascending)])
        positions = np.arange(firsts[-1]) - np.repeat(firsts[:-1], ascending)
        places = np.repeat(order * attention_mask.shape[1], ascending) + positions
        groups = tuple(
            _group(part, firsts, positions, ascending) for part in micro_batches(ascending**2, 1, _MOST_PADDED_SCORES)
        )
        given, count = torch.from_numpy, len(places)
        more = np.zeros(-count % _TOKENS, dtype=np.int64)
        places, positions = np.concatenate([places, more]), np.concatenate([positions, more])
        return cls(
            attention_mask.shape, given(places), count, given(order), given(firsts[:-1]), given(positions), groups
        )

    def take(self, batch: Tensor) -> Tensor:
        """The packed (1, N) of numbers (B, T)."""
        return batch.flatten()[self.places].unsqueeze(0)

    def padded(self, packed: Tensor) -> Tensor:
        """Hidden states (B, T, d) of the packed (1, N, d), zeros for padding; (B, 1, d) of first tokens (1, B, d)."""
        if packed.shape[1] == len(self.order):  # also right if each input has one token
            return _scattered(packed[0], self.order, len(self.order)).unsqueeze(1)
        places = self.places[: self.count]
        return _scattered(packed[0, : self.count], places, self.shape.numel()).unflatten(0, self.shape)


def _group(part: np.ndarray, firsts: np.ndarray, positions: np.ndarray, lengths: np.ndarray) -> Group:
    """The group of the inputs numbered ``part`` in the packed order."""
    inputs = slice(int(part[0]), int(part[-1]) + 1)
    tokens, longest = slice(int(firsts[inputs.start]), int(firsts[inputs.stop])), int(lengths[part[-1]])
    if lengths[part[0]] == longest:
        return Group(inputs, tokens, None, longest, None)
    visible = np.arange(longest) < lengths[part][:, None]
    mask = torch.zeros(visible.shape).masked_fill_(torch.from_numpy(~visible), -torch.inf)
    places = np.repeat(np.arange(len(part)) * longest, lengths[part]) + positions[tokens]
    return Group(inputs, tokens, torch.from_numpy(places), longest, mask[:, None, None, :])


def _scattered(rows: Tensor, places: Tensor, count: int) -> Tensor:
    """(count, ...) with ``rows`` (n, ...) at ``places`` (n,), no place twice, and zeros elsewhere."""
    return rows.new_zeros(count, *rows.shape[1:]).index_copy_(0, places, rows)


class _Gathered(torch.autograd.Function):
    """``rows[places]``, no place twice, so that the backward pass can copy rows; autograd's own would add them up."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, places: Tensor) -> Tensor:
        ctx.save_for_backward(places)
        ctx.count = len(rows)
        return rows.index_select(0, places)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (places,) = ctx.saved_tensors
        return _scattered(gradients[0], places, ctx.count), None
