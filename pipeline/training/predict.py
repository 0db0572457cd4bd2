"""Predictions for a whole split, in the split's order."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor

from pipeline.data.batches import Batch, collate, evaluation_order, inputs_of, sentences_of
from pipeline.data.tokens import TokenisedSplit
from pipeline.models.transfer_model import JointModel, TransferModel
from pipeline.system.errors import PipelineError
from pipeline.training.devices import OneDevice

# Rows of a siamese split whose sentence vectors are in memory at a time: 200 MB with 768 dimensions.
BLOCK_ROWS = 32_768

Extend = Callable[[Batch], Batch]
Compute: TypeAlias = Accelerator | OneDevice
"""The device and precision to compute in."""


def mean_outputs(
    model: TransferModel | JointModel,
    splits: Sequence[TokenisedSplit],
    *,
    batch_size: int,
    pad_token_id: int,
    accelerator: Compute,
    extend: Extend | None = None,
) -> Tensor:
    """The outputs of ``model`` (rows, k), in the order of the rows; a :class:`PipelineError` if one is not finite.

    Batches hold inputs of similar length. Each distinct sentence of a siamese split is encoded once, padded to the
    length of such sentences, not of its pair. Each process takes its share of the batches; all get the whole result.

    Args:
        splits: variants of the same rows, such as both orders of pairs; their outputs are averaged.
        extend: may add cached outputs to a batch (:class:`PrefixCache`).
    """
    if model.training:  # eval() visits all modules, which takes half as long as encoding a short text
        model.eval()

    def encode(part: TokenisedSplit, rows: np.ndarray) -> Tensor:
        batch = collate(part, rows, pad_token_id)
        batch = batch if extend is None else extend(batch)
        inputs = {name: tensor.to(accelerator.device) for name, tensor in inputs_of(batch).items()}
        # Mixed precision belongs to `forward`, which is not called here.
        with accelerator.autocast():
            return model.encode(**inputs)

    def siamese(split: TokenisedSplit, rows: np.ndarray) -> Tensor:
        sentences, pairs = sentences_of(split, rows)
        vectors = _in_order(
            lambda some: encode(sentences, some).float().cpu(), sentences.lengths, 2 * batch_size, accelerator
        )
        # Only the heads remain to run: on first and second sentences as two columns, cut into batches of rows.
        columns = torch.from_numpy(pairs).view(2, -1).split(batch_size, dim=1)
        return torch.cat([model.decide(vectors[c.flatten()].to(accelerator.device)).cpu() for c in columns])

    def outputs_for(split: TokenisedSplit) -> Tensor:
        if split.b is None:
            return _in_order(
                lambda rows: model.decide(encode(split, rows)).cpu(), split.lengths, batch_size, accelerator
            )
        starts = range(0, len(split), BLOCK_ROWS)
        return torch.cat([siamese(split, np.arange(i, min(i + BLOCK_ROWS, len(split)))) for i in starts])

    with torch.inference_mode():
        first, *others = (outputs_for(split) for split in splits)
        outputs = torch.stack([first, *others]).mean(dim=0) if others else first
    if not torch.isfinite(outputs).all():
        raise PipelineError(
            "the model's outputs are no longer finite numbers; lower --learning-rate or use --precision fp32"
        )
    return outputs


def _in_order(
    compute: Callable[[np.ndarray], Tensor], lengths: np.ndarray, batch_size: int, accelerator: Compute
) -> Tensor:
    """``compute(rows)`` over batches of similar length, split over the processes; results by row."""
    mine = evaluation_order(lengths, batch_size)[accelerator.process_index :: accelerator.num_processes]
    parts = [(torch.from_numpy(rows), compute(rows)) for rows in mine]
    if accelerator.num_processes > 1:
        parts = gather_object(parts)
    values = torch.cat([part for _, part in parts])
    restored = torch.empty_like(values)
    restored[torch.cat([rows for rows, _ in parts])] = values
    return restored
