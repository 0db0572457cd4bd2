"""Cache of the frozen prefix's outputs for the inputs of a split: computed once instead of every epoch."""

from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor

from pipeline.data.batches import BACKBONE_INPUTS, Batch, collate, evaluation_order, sentences_of
from pipeline.data.tokens import TokenisedSplit
from pipeline.models.layout import frozen_depth, is_frozen
from pipeline.models.transfer_model import TransferModel


class PrefixCache:
    """Outputs of :meth:`TransferModel.prefix_output` for the inputs of one split, at most ``max_bytes`` of numbers.

    The index of the inputs takes about 150 more bytes per input.

    All outputs are computed in one pass, in batches of similar length, when the first is needed. The shortest inputs
    are kept, so the choice depends only on the split and the bound. A resumed run with the same bound therefore reads
    the same bits as an uninterrupted one, although the last bits of a product may depend on the shape of its batch.
    Every process keeps the whole cache, because it sees other rows every epoch.
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
        backbone: Any = model.backbone
        self._is_whole, lengths = is_frozen(backbone), self._inputs.lengths
        order = np.argsort(lengths, kind="stable")
        vectors = np.ones_like(order) if self._is_whole else lengths[order]
        taken = np.cumsum(vectors) * backbone.config.hidden_size * 4  # bytes of an fp32 number
        count = int(np.searchsorted(taken, max_bytes, side="right")) if frozen_depth(backbone) else 0
        self._kept, self.bytes = order[:count], int(taken[count - 1]) if count else 0
        # One tensor for all inputs: a tensor object takes as much memory as a sentence vector.
        self._vectors: Tensor | None = None  # of all inputs, or of all their tokens, concatenated
        self._firsts: dict[bytes, int] = {}  # where the vectors of an input begin

    def extend(self, batch: Batch) -> Batch:
        """``batch`` with ``known``, the cached outputs of its inputs, for :meth:`TransferModel.encode`.

        ``absent`` numbers the inputs that are not cached; it is left out if there are none. A batch without any cached
        input is returned unchanged.
        """
        if not len(self._kept):
            return batch
        vectors = self._filled() if self._vectors is None else self._vectors
        firsts = [self._firsts.get(key) for key in _keys(batch)]
        absent = [number for number, first in enumerate(firsts) if first is None]
        if len(absent) == len(firsts):
            return batch
        width = 1 if self._is_whole else batch["input_ids"].shape[1]
        known = vectors.new_zeros(len(firsts), width, vectors.shape[1])
        for place, first, length in zip(known, firsts, self._lengths_in(batch), strict=True):
            if first is not None:
                place[:length] = vectors[first : first + length]
        known = known.squeeze(1) if self._is_whole else known
        return {**batch, "known": known, **({"absent": torch.tensor(absent)} if absent else {})}

    def _lengths_in(self, batch: Batch) -> list[int]:
        """The number of vectors of each input."""
        mask = batch["attention_mask"]
        return [1] * len(mask) if self._is_whole else mask.sum(dim=1).tolist()

    def _filled(self) -> Tensor:
        """Compute the vectors of all inputs that are kept."""
        lengths, end = self._inputs.lengths, 0
        total = len(self._kept) if self._is_whole else int(lengths[self._kept].sum())
        for rows in evaluation_order(lengths[self._kept], self._batch_size):
            batch = collate(self._inputs, self._kept[rows], self._pad_token_id)
            inputs = {name: batch[name].to(self._accelerator.device) for name in BACKBONE_INPUTS if name in batch}
            # Mixed precision belongs to the model's `forward`, which is not called here.
            with self._accelerator.autocast():
                outputs = self._model.prefix_output(inputs).cpu()
            if self._vectors is None:
                self._vectors = outputs.new_empty(total, outputs.shape[-1])
            for key, output, length in zip(_keys(batch), outputs, self._lengths_in(batch), strict=True):
                self._vectors[end : end + length] = output[:length] if output.ndim == 2 else output
                self._firsts[key] = end
                end += length
        assert self._vectors is not None
        return self._vectors


def _keys(batch: Batch) -> list[bytes]:
    """The identity of each input: a digest of its tokens and token types without padding."""
    lengths = batch["attention_mask"].sum(dim=1).tolist()
    parts = [batch[name].int().numpy() for name in ("input_ids", "token_type_ids") if name in batch]
    inputs = (b"".join(part[row, :length].tobytes() for part in parts) for row, length in enumerate(lengths))
    return [blake2b(tokens, digest_size=16).digest() for tokens in inputs]
