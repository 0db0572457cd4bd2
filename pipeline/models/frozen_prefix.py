"""The frozen prefix of a model: the layers below the lowest one that trains, computed once instead of every epoch.

The bottom k layers, embeddings included, in which nothing trains give an input the same hidden states every time, so
:class:`PrefixCache` keeps them; where the whole backbone is frozen it keeps the pooled sentence vectors. They run in
evaluation mode and without gradients: dropout below the lowest trained layer would only blur its input.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from pipeline.data.batches import BACKBONE_INPUTS, Batch, collate, evaluation_order, sentences_of
from pipeline.data.tokens import TokenisedSplit
from pipeline.models.layout import layers_of, stack_of

if TYPE_CHECKING:
    from accelerate import Accelerator

    from pipeline.models.transfer_model import TransferModel

_NUMBER_BYTES = 4


def frozen_depth(backbone: nn.Module) -> int:
    """k: how many layers from the bottom hold nothing that trains; 0 if the embeddings train."""
    if _trains(backbone.embeddings):  # type: ignore[arg-type]
        return 0
    layers = layers_of(backbone)
    return next((depth for depth, layer in enumerate(layers) if _trains(layer)), len(layers))


def frozen_parts(backbone: nn.Module) -> list[nn.Module]:
    """The modules of the frozen prefix; the backbone itself if nothing in it trains."""
    layers, depth = layers_of(backbone), frozen_depth(backbone)
    if depth == len(layers):
        return [backbone]
    return [backbone.embeddings, *layers[:depth]] if depth else []  # type: ignore[list-item]


@torch.no_grad()
def below(backbone: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
    """Hidden states (B, T, d) that the lowest trained layer reads."""
    return lower_states(backbone, frozen_depth(backbone), inputs)


def above(backbone: nn.Module, states: Tensor, inputs: dict[str, Tensor]) -> Tensor:
    """Last hidden states from those of :func:`below`."""
    return upper_states(backbone, frozen_depth(backbone), states, inputs)


def lower_states(backbone: nn.Module, depth: int, inputs: dict[str, Tensor]) -> Tensor:
    """Hidden states (B, T, d) after the embeddings and the lower ``depth`` layers."""
    with _cut(backbone, slice(0, depth)):
        return backbone(**inputs).last_hidden_state


def upper_states(backbone: nn.Module, depth: int, states: Tensor, inputs: dict[str, Tensor]) -> Tensor:
    """Last hidden states from those of :func:`lower_states`."""
    with _cut(backbone, slice(depth, None), _Given(states)):
        return backbone(**inputs).last_hidden_state


def prefix_output(model: TransferModel, inputs: dict[str, Tensor]) -> Tensor:
    """What is kept of inputs: states (B, T, d), or sentence vectors (B, d) if the whole backbone is frozen."""
    if _is_whole(model.backbone):
        with torch.no_grad():
            return model.encode(**inputs)
    return below(model.backbone, inputs)


def completed(model: TransferModel, known: Tensor, absent: Tensor | None, inputs: dict[str, Tensor]) -> Tensor:
    """``known`` with the inputs numbered ``absent`` computed now: the cache had no room for them."""
    if absent is None:
        return known
    computed = prefix_output(model, {name: tensor[absent] for name, tensor in inputs.items()})
    return known.index_copy(0, absent, computed.to(known.dtype))


class PrefixCache:
    """The prefix's outputs for the inputs of one split, in memory, at most ``max_bytes`` of them.

    All are computed in one pass in batches of like length when the first is asked for, and which are kept follows from
    the split and the bound alone, the shortest first. So a run that was killed and goes on reads the same numbers, bit
    for bit, as one never stopped: a product may differ in its last bits with the shape of the batch it was made in.
    Each process of several keeps them all, for it meets other rows every epoch.
    """

    def __init__(
        self,
        model: TransferModel,
        split: TokenisedSplit,
        *,
        max_bytes: float,
        batch_size: int,
        pad_token_id: int,
        accelerator: Accelerator,
    ) -> None:
        self._model, self._accelerator = model, accelerator
        self._batch_size, self._pad_token_id = batch_size, pad_token_id
        self._inputs = split if split.b is None else sentences_of(split, np.arange(len(split)))[0]
        self._kept, self.bytes = _within(self._inputs.lengths, model, max_bytes)
        self._outputs: dict[bytes, Tensor] = {}

    def extend(self, batch: Batch) -> Batch:
        """``batch`` with ``known``, the outputs of its inputs as :func:`prefix_output` shapes them.

        ``absent`` numbers the inputs that are not kept, for :func:`completed`; it is left out if there are none. A
        batch with nothing kept comes back as it is.
        """
        if len(self._kept) and not self._outputs:
            self._fill()
        found = [self._outputs.get(key) for key in _keys(batch)]
        some = next((output for output in found if output is not None), None)
        if some is None:
            return batch
        length = batch["input_ids"].shape[1:] if some.ndim == 2 else ()
        known = some.new_zeros(len(found), *length, some.shape[-1])
        for place, output in zip(known, found, strict=True):
            if output is not None:
                place[: len(output)] = output
        absent = [number for number, output in enumerate(found) if output is None]
        return {**batch, "known": known, **({"absent": torch.tensor(absent)} if absent else {})}

    def _fill(self) -> None:
        lengths = self._inputs.lengths
        for rows in evaluation_order(lengths[self._kept], self._batch_size):
            batch = collate(self._inputs, self._kept[rows], self._pad_token_id)
            inputs = {name: batch[name].to(self._accelerator.device) for name in BACKBONE_INPUTS if name in batch}
            # Mixed precision belongs to the model's `forward`, which is not called here.
            with self._accelerator.autocast():
                outputs = prefix_output(self._model, inputs).cpu()
            for key, output, row in zip(_keys(batch), outputs, self._kept[rows], strict=True):
                # A copy, so that the batch and its padding are not kept with it.
                self._outputs[key] = (output[: lengths[row]] if output.ndim == 2 else output).clone()


def _within(lengths: np.ndarray, model: TransferModel, max_bytes: float) -> tuple[np.ndarray, int]:
    """Which inputs are kept, and the bytes that takes; none if nothing is frozen."""
    if not frozen_depth(model.backbone):
        return np.arange(0), 0
    order = np.argsort(lengths, kind="stable")
    vectors = np.ones_like(order) if _is_whole(model.backbone) else lengths[order]
    taken = np.cumsum(vectors) * model.backbone.config.hidden_size * _NUMBER_BYTES  # type: ignore[union-attr]
    count = int(np.searchsorted(taken, max_bytes, side="right"))
    return order[:count], int(taken[count - 1]) if count else 0


def _keys(batch: Batch) -> list[bytes]:
    """What tells inputs apart wherever they stand: their tokens and token types without padding."""
    lengths = batch["attention_mask"].sum(dim=1).tolist()
    parts = [batch[name].int().numpy() for name in ("input_ids", "token_type_ids") if name in batch]
    return [b"".join(part[row, :length].tobytes() for part in parts) for row, length in enumerate(lengths)]


def _trains(module: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in module.parameters())


def _is_whole(backbone: nn.Module) -> bool:
    return frozen_depth(backbone) == len(layers_of(backbone))


@contextmanager
def _cut(backbone: nn.Module, part: slice, embeddings: nn.Module | None = None) -> Iterator[None]:
    """Let ``backbone`` run only some layers, on other embeddings; transformers' own code runs them."""
    stack, own = stack_of(backbone), backbone.embeddings
    layers = stack.layer
    stack.layer = layers[part]
    backbone.embeddings = own if embeddings is None else embeddings
    try:
        yield
    finally:
        stack.layer, backbone.embeddings = layers, own


class _Given(nn.Module):
    """Stands where the embeddings stand and gives ``states`` for any input."""

    def __init__(self, states: Tensor) -> None:
        super().__init__()
        self.states = states

    def forward(self, *_: Any, **__: Any) -> Tensor:
        return self.states
