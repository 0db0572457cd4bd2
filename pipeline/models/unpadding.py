"""Unpadding: the tokens of a batch packed into one sequence, for all but attention (Zeng et al. 2022).

Everything in a BERT layer but attention treats each token by itself, so a batch (B, T) may as well be one sequence of
its N tokens. Attention takes inputs in groups of similar length, each padded separately. In a batch of mixed lengths
easily half of the tokens are padding; a packed batch costs only its real tokens.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointWrapper

from pipeline.data.batches import micro_batches
from pipeline.models.layout import layers_of

_MOST_PADDED_SCORES = 8192
"""With more attention scores of padding than this, per head, two smaller groups are faster than one (MiniLM)."""


_TOKENS = 32
"""Packed sequences are filled up to a multiple of this, so that matrix products have few shapes to prepare."""


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
        return scattered(part, self.places, count * self.length).unflatten(0, (count, self.length))

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
    def of(cls, attention_mask: Tensor) -> "Packed":
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
            return scattered(packed[0], self.order, len(self.order)).unsqueeze(1)
        places = self.places[: self.count]
        return scattered(packed[0, : self.count], places, self.shape.numel()).unflatten(0, self.shape)


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


class _Scattered(torch.autograd.Function):
    """``out[places] = rows``. Forward and backward each copy rows; autograd's own would add them up."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, places: Tensor, count: int) -> Tensor:
        ctx.save_for_backward(places)
        return rows.new_zeros(count, *rows.shape[1:]).index_copy_(0, places, rows)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (places,) = ctx.saved_tensors
        return gradients[0].index_select(0, places), None, None


class _Gathered(torch.autograd.Function):
    """``rows[places]``, no place twice."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, places: Tensor) -> Tensor:
        ctx.save_for_backward(places)
        ctx.count = len(rows)
        return rows.index_select(0, places)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (places,) = ctx.saved_tensors
        return gradients[0].new_zeros(ctx.count, *gradients[0].shape[1:]).index_copy_(0, places, gradients[0]), None


def scattered(rows: Tensor, places: Tensor, count: int) -> Tensor:
    """(count, ...) with ``rows`` (n, ...) at ``places`` (n,), no place twice, and zeros elsewhere."""
    return _Scattered.apply(rows, places, count)


_current: ContextVar["Packed | None"] = ContextVar("packed", default=None)


def current_packed() -> Packed | None:
    """The packed batch that lean encoders are computing; None: a padded batch."""
    return _current.get()


@contextmanager
def as_packed(packed: Packed) -> Iterator[None]:
    """Let lean encoders compute ``packed``."""
    token = _current.set(packed)
    try:
        yield
    finally:
        _current.reset(token)


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


def packed_inputs(encoder: Any, packed: Packed, input_ids: Tensor, token_type_ids: Tensor | None) -> dict[str, Tensor]:
    """The inputs of ``encoder`` for a packed batch, (1, N).

    RoBERTa counts positions from its padding index + 1.
    """
    first = getattr(encoder.embeddings, "padding_idx", None)
    positions = packed.positions if first is None else packed.positions + first + 1
    ids = packed.take(input_ids)
    types = torch.zeros_like(ids) if token_type_ids is None else packed.take(token_type_ids)
    return {"input_ids": ids, "token_type_ids": types, "position_ids": positions.unsqueeze(0)}
