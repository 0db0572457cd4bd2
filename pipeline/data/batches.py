"""Batches with little padding: shuffled for training, and of like length in large sets; sorted for evaluation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from pipeline.data.tokens import TokenisedSplit

Batch = dict[str, torch.Tensor]

# What of a batch the backbone reads; not every family knows token types.
BACKBONE_INPUTS = ("input_ids", "attention_mask", "token_type_ids")


@dataclass(frozen=True)
class Piece:
    """A micro-batch: as much of a step's batch as is computed at once."""

    batch: Batch
    task: str = ""
    """Whose rows these are, where a step holds batches of several tasks."""

    def __len__(self) -> int:
        return len(self.batch["rows"])


# Batches of like length waste little padding, but rows of like length then meet again and again, and where length tells
# of the label, batches differ in their labels. A set of few batches is therefore shuffled and no more. A larger one is
# cut into blocks that are sorted by length: at most an eighth of the set, so that few rows meet again in the next
# epoch, and at most 64 batches, since longer blocks hardly save more padding.
_SHUFFLED_BELOW = 64
_BLOCKS = 8
_BATCHES_PER_BLOCK = 64

_PASS_TOKENS = 64
"""Tokens of padding that take as long on a CPU as one more forward and backward pass (MiniLM: 40 to 75)."""


def training_order(lengths: np.ndarray, batch_size: int, seed: int, epoch: int) -> list[np.ndarray]:
    """Row positions of each batch of ``epoch``: every row once, another order each epoch; a batch is sorted by length.

    Up to 63 batches an epoch, their rows are drawn at random. Beyond that, rows of like length stand together.
    The order depends on ``(seed, epoch)`` alone, so a resumed run sees the batches it would have seen.
    """
    generator = np.random.default_rng([seed, epoch])
    order = generator.permutation(len(lengths))
    block = batch_size * _batches_per_block(-(-len(order) // batch_size))
    batches: list[np.ndarray] = []
    for start in range(0, len(order), block):
        rows = order[start : start + block]
        rows = rows[np.argsort(lengths[rows], kind="stable")]
        batches += [rows[i : i + batch_size] for i in range(0, len(rows), batch_size)]
    return [batches[i] for i in generator.permutation(len(batches))]


def _batches_per_block(batches: int) -> int:
    return 1 if batches < _SHUFFLED_BELOW else min(batches // _BLOCKS, _BATCHES_PER_BLOCK)


def evaluation_order(lengths: np.ndarray, batch_size: int) -> list[np.ndarray]:
    """Row positions in length order, longest first, so that memory trouble shows at once."""
    order = np.argsort(-lengths, kind="stable")
    return [order[i : i + batch_size] for i in range(0, len(order), batch_size)]


def collate(split: TokenisedSplit, rows: np.ndarray, pad_token_id: int) -> Batch:
    """Pad ``rows`` of ``split`` to their longest input.

    Returns:
        ``input_ids``, ``attention_mask`` and, where the backbone has them, ``token_type_ids``, each (B, T); a siamese
        split gives (2B, T), first sentences before second ones, but a sentence that repeats stands there once, and
        ``pairs`` (2B,) says where each of the 2B is. ``labels`` (B,) when the split has labels, ``rows`` (B,) the
        positions in the split.
    """
    sequences = [split.a[row] for row in rows]
    pairs = None
    if split.b is not None:
        every = sequences + [split.b[row] for row in rows]
        sequences, pairs = distinct(every)
        if len(sequences) == len(every):
            pairs = None
    input_ids = _pad(sequences, pad_token_id)
    batch = {
        "input_ids": input_ids,
        "attention_mask": _pad([np.ones(len(ids), dtype=np.int64) for ids in sequences], 0),
        "rows": torch.from_numpy(np.ascontiguousarray(rows)),
    }
    if pairs is not None:
        batch["pairs"] = torch.from_numpy(pairs)
    if split.types_a is not None:
        if split.b is None:
            batch["token_type_ids"] = _pad([split.types_a[row] for row in rows], 0)
        else:
            batch["token_type_ids"] = torch.zeros_like(input_ids)
    if split.labels is not None:
        labels = split.labels[rows]
        # fp32 scores: some accelerators have no fp64.
        batch["labels"] = torch.from_numpy(labels.astype(np.float32) if labels.dtype.kind == "f" else labels)
    return batch


def inputs_of(batch: Batch) -> Batch:
    """What of a batch the model reads."""
    return {name: tensor for name, tensor in batch.items() if name not in ("rows", "labels")}


def distinct(sequences: Sequence[np.ndarray]) -> tuple[list[np.ndarray], np.ndarray]:
    """The different ones of ``sequences`` in order of first appearance, and for each of them its number there."""
    numbers: dict[bytes, int] = {}
    found: list[np.ndarray] = []
    where = np.empty(len(sequences), dtype=np.int64)
    for position, ids in enumerate(sequences):
        number = numbers.setdefault(ids.tobytes(), len(found))
        if number == len(found):
            found.append(ids)
        where[position] = number
    return found, where


def sentences_of(split: TokenisedSplit, rows: np.ndarray) -> tuple[TokenisedSplit, np.ndarray]:
    """The different sentences of ``rows`` of a siamese split as a split of their own, and ``pairs`` (2B,).

    ``pairs`` holds the number of each first sentence, then of each second one.
    """
    assert split.b is not None
    found, pairs = distinct([split.a[row] for row in rows] + [split.b[row] for row in rows])
    types = None if split.types_a is None else [np.zeros_like(ids) for ids in found]
    return TokenisedSplit(tuple(map(str, range(len(found)))), found, types, None, None), pairs


def training_batches(
    split: TokenisedSplit,
    batch_size: int,
    pieces: int,
    seed: int,
    epoch: int,
    pad_token_id: int,
    first: int = 0,
    most_padding: int | None = None,
) -> Iterator[list[Batch]]:
    """The batches of one epoch from number ``first`` on, each as its micro-batches (:func:`micro_batches`)."""
    lengths = split.lengths
    for rows in training_order(lengths, batch_size, seed, epoch)[first:]:
        yield [collate(split, rows[part], pad_token_id) for part in micro_batches(lengths[rows], pieces, most_padding)]


def micro_batches(lengths: np.ndarray, pieces: int, most_padding: int | None = None) -> list[np.ndarray]:
    """Positions in a batch sorted by length, cut into ``pieces`` of even size, or as many as the batch has rows.

    Args:
        lengths: of the batch's rows, ascending.
        most_padding: a piece with more tokens of padding is cut further (:func:`padding_worth_a_pass`).
    """
    even = np.array_split(np.arange(len(lengths)), min(pieces, len(lengths)))
    if most_padding is None:
        return even
    return [part[positions] for part in even for positions in _little_padding(lengths[part], most_padding)]


def _little_padding(lengths: np.ndarray, most: int) -> list[np.ndarray]:
    """Ascending ``lengths`` cut, from the longest down, wherever a piece would hold more than ``most`` padding."""
    cuts: list[int] = []
    longest, padding = lengths[-1], 0
    for position in range(len(lengths) - 1, -1, -1):
        padding += longest - lengths[position]
        if padding > most:
            cuts.append(position + 1)
            longest, padding = lengths[position], 0
    return np.split(np.arange(len(lengths)), cuts[::-1])


def padding_worth_a_pass(device: torch.device) -> int | None:
    """Tokens of padding in a micro-batch beyond which two shorter ones are faster; None: never on this device.

    On a GPU a pass over so few rows takes as long however long they are.
    """
    return _PASS_TOKENS if device.type == "cpu" else None


def _pad(sequences: Sequence[np.ndarray], value: int) -> torch.Tensor:
    padded = np.full((len(sequences), max(len(ids) for ids in sequences)), value, dtype=np.int64)
    for row, ids in enumerate(sequences):
        padded[row, : len(ids)] = ids
    return torch.from_numpy(padded)
