"""Batches with little padding: shuffled for training, grouped by length in large sets, and sorted for evaluation."""

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import torch

from pipeline.data.labels import are_sets, as_matrix
from pipeline.data.tokens import TokenisedSplit

Batch = dict[str, torch.Tensor]
BACKBONE_INPUTS = ("input_ids", "attention_mask", "token_type_ids")  # not every family has token types


@dataclass(frozen=True)
class Piece:
    """A micro-batch: the part of a step's batch that is computed at once."""

    batch: Batch
    task: str = ""  # of the rows, if a step holds batches of several

    def __len__(self) -> int:
        return len(self.batch["rows"])


def training_order(lengths: np.ndarray, batch_size: int, seed: int, epoch: int) -> list[np.ndarray]:
    """Row positions of the batches of ``epoch``: every row once, in an order that changes with the epoch.

    A batch is sorted by length. Its rows are random if an epoch has up to 63 batches, else of similar length. The order
    depends only on ``(seed, epoch)``, so a resumed run sees the same batches as an uninterrupted one.
    """
    generator = np.random.default_rng([seed, epoch])
    order = generator.permutation(len(lengths))
    count = -(-len(order) // batch_size)
    # Batches of inputs of similar length waste little padding. But they bring the same rows together again and again,
    # and if length depends on the label, they differ in their labels. So a set of few batches is only shuffled. A
    # larger one is cut into blocks that are sorted by length. A block is at most an eighth of the set, so that few rows
    # meet again in the next epoch, and at most 64 batches, since longer blocks hardly save more padding.
    block = batch_size * (1 if count < 64 else min(count // 8, 64))
    batches: list[np.ndarray] = []
    for start in range(0, len(order), block):
        rows = order[start : start + block]
        rows = rows[np.argsort(lengths[rows], kind="stable")]
        batches += [rows[i : i + batch_size] for i in range(0, len(rows), batch_size)]
    return [batches[i] for i in generator.permutation(len(batches))]


def evaluation_order(lengths: np.ndarray, batch_size: int) -> list[np.ndarray]:
    """Row positions by length, longest first, so that running out of memory shows at once."""
    order = np.argsort(-lengths, kind="stable")
    return [order[i : i + batch_size] for i in range(0, len(order), batch_size)]


def collate(split: TokenisedSplit, rows: np.ndarray, pad_token_id: int) -> Batch:
    """Pad ``rows`` of ``split`` to their longest input.

    Returns:
        ``input_ids``, ``attention_mask`` and, if the backbone uses them, ``token_type_ids``, all (B, T). A siamese
        split gives (2B, T), first sentences before second ones. If sentences repeat, every distinct one is encoded
        once and ``pairs`` (2B,) maps the 2B sentences to rows. ``labels`` (B,), or (B, C) of label sets, if the
        split has labels, and ``rows`` (B,), the positions in the split.
    """
    sequences = [split.a[row] for row in rows]
    pairs = None
    if split.b is not None:
        sequences, pairs = distinct(sequences + [split.b[row] for row in rows])
    input_ids = _pad(sequences, pad_token_id)
    batch = {
        "input_ids": input_ids,
        "attention_mask": _pad([np.ones(len(ids), dtype=np.int64) for ids in sequences], 0),
        "rows": torch.from_numpy(np.ascontiguousarray(rows)),
    }
    if pairs is not None and len(sequences) < len(pairs):
        batch["pairs"] = torch.from_numpy(pairs)
    if split.types_a is not None:
        types = [split.types_a[row] for row in rows]
        # Single sentences are all of type 0.
        batch["token_type_ids"] = _pad(types, 0) if split.b is None else torch.zeros_like(input_ids)
    if split.labels is not None:
        labels = split.labels[rows]
        labels = as_matrix(labels) if are_sets(labels) else labels
        # fp32 scores: some accelerators have no fp64.
        batch["labels"] = torch.from_numpy(labels if labels.dtype.kind == "i" else labels.astype(np.float32))
    return batch


def inputs_of(batch: Batch) -> Batch:
    """The part of a batch that the model reads."""
    return {name: tensor for name, tensor in batch.items() if name not in ("rows", "labels")}


def distinct(sequences: Sequence[np.ndarray]) -> tuple[list[np.ndarray], np.ndarray]:
    """The distinct ``sequences`` in order of first appearance, and for every sequence its index among them."""
    numbers: dict[bytes, int] = {}
    each = np.array([numbers.setdefault(ids.tobytes(), len(numbers)) for ids in sequences], dtype=np.int64)
    _, first = np.unique(each, return_index=True)
    return [sequences[position] for position in first], each


def sentences_of(split: TokenisedSplit, rows: np.ndarray) -> tuple[TokenisedSplit, np.ndarray]:
    """A split of the distinct sentences in ``rows`` of a siamese split, and the index into it of every sentence (2B,).

    The indices of the first sentences come before those of the second.
    """
    assert split.b is not None
    sentences, pairs = distinct([split.a[row] for row in rows] + [split.b[row] for row in rows])
    types = None if split.types_a is None else [np.zeros_like(ids) for ids in sentences]
    return TokenisedSplit(sentences, types, None, None), pairs


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
    """The batches of one epoch from number ``first`` on, cut into micro-batches (:func:`micro_batches`)."""
    lengths = split.lengths
    for rows in training_order(lengths, batch_size, seed, epoch)[first:]:
        yield [collate(split, rows[part], pad_token_id) for part in micro_batches(lengths[rows], pieces, most_padding)]


def micro_batches(lengths: np.ndarray, pieces: int, most_padding: int | None = None) -> list[np.ndarray]:
    """Cut a batch of ascending ``lengths`` into ``pieces`` of even size, at most one a row; returns their positions.

    A piece with more than ``most_padding`` tokens of padding is cut further (:func:`padding_worth_a_pass`).
    """
    even = np.array_split(np.arange(len(lengths)), min(pieces, len(lengths)))
    if most_padding is None:
        return even
    cut: list[np.ndarray] = []
    for part in even:
        # From the longest row down, cut wherever a piece would hold too much padding.
        cuts: list[int] = []
        longest, padding = lengths[part[-1]], 0
        for position in range(len(part) - 1, -1, -1):
            padding += longest - lengths[part[position]]
            if padding > most_padding:
                cuts.append(position + 1)
                longest, padding = lengths[part[position]], 0
        cut += np.split(part, cuts[::-1])
    return cut


def padding_worth_a_pass(device: torch.device, precision: str = "fp32") -> int | None:
    """Tokens of padding beyond which two smaller micro-batches are faster than one; None: never on this device.

    On a GPU a pass over a few rows takes the same time whatever their length.
    """
    if device.type != "cpu":
        return None
    # On a CPU this much padding takes as long as another forward and backward pass (MiniLM: 40 to 75 tokens in fp32,
    # 130 to 250 in bf16, which speeds up tokens but not passes).
    return 192 if precision == "bf16" else 64


def _pad(sequences: Sequence[np.ndarray], value: int) -> torch.Tensor:
    padded = np.full((len(sequences), max(len(ids) for ids in sequences)), value, dtype=np.int64)
    for row, ids in enumerate(sequences):
        padded[row, : len(ids)] = ids
    return torch.from_numpy(padded)


def prefetched(batches: Iterator[list[Piece]], ahead: int = 2) -> Iterator[list[Piece]]:
    """Yield the same batches in the same order; a thread collates and pins them while a GPU computes.

    Copying from pinned memory to the GPU does not make the host wait. An error in ``batches`` is raised where its batch
    was due.
    """

    def pinned() -> list[Piece] | None:
        pieces = next(batches, None)
        return pieces and [
            replace(piece, batch={name: tensor.pin_memory() for name, tensor in piece.batch.items()})
            for piece in pieces
        ]

    with ThreadPoolExecutor(max_workers=1) as thread:
        waiting = deque(thread.submit(pinned) for _ in range(ahead))
        while (pieces := waiting.popleft().result()) is not None:
            waiting.append(thread.submit(pinned))
            yield pieces
