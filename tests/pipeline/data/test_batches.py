"""Batches hold every row exactly once, like lengths together, and depend on seed and epoch alone."""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
import torch

from pipeline.data.batches import (
    Batch,
    Piece,
    collate,
    evaluation_order,
    micro_batches,
    padding_worth_a_pass,
    prefetched,
    training_batches,
    training_order,
)
from pipeline.data.tokens import TokenisedSplit

PAD = 99


def random_lengths(rows: int, seed: int = 0) -> np.ndarray:
    """Lengths in tokens that are distributed much as those of SST: from 4 to 80, half of them up to 23."""
    return np.random.default_rng(seed).gamma(4.3, 6, rows).astype(int).clip(4, 80)


def split_of(
    lengths: np.ndarray, second: np.ndarray | None = None, types: bool = True, labels: bool = True
) -> TokenisedSplit:
    """Rows whose tokens tell where they come from: row i holds i + 100, its second sentence i + 200."""

    def filled(lengths: np.ndarray, base: int) -> list[np.ndarray]:
        return [np.full(length, base + row, dtype=np.int32) for row, length in enumerate(lengths)]

    return TokenisedSplit(
        a=filled(lengths, 100),
        types_a=[np.arange(length, dtype=np.int32) % 2 for length in lengths] if types else None,
        b=None if second is None else filled(second, 200),
        labels=np.arange(len(lengths)) * 10 if labels else None,
    )


def padded_tokens(batches: list[np.ndarray], lengths: np.ndarray) -> int:
    return sum(len(rows) * int(lengths[rows].max()) for rows in batches)


def as_lists(batches: list[np.ndarray]) -> list[list[int]]:
    return [rows.tolist() for rows in batches]


@pytest.mark.covering(1)
@pytest.mark.parametrize("rows", [1, 2, 31, 32, 33, 500, 2049, 5000])
@pytest.mark.parametrize("batch_size", [1, 7, 32])
def test_an_epoch_holds_every_row_exactly_once(rows: int, batch_size: int) -> None:
    lengths = random_lengths(rows, seed=rows)
    for epoch in range(2):
        batches = training_order(lengths, batch_size, seed=3, epoch=epoch)
        assert np.sort(np.concatenate(batches)).tolist() == list(range(rows))
        assert len(batches) == -(-rows // batch_size)
        assert sorted(map(len, batches))[1:] == [batch_size] * (len(batches) - 1)


@pytest.mark.parametrize("rows", [64, 3000])
def test_the_order_is_another_for_another_epoch_or_seed_and_the_same_for_the_same(rows: int) -> None:
    lengths = random_lengths(rows)
    first = as_lists(training_order(lengths, 16, seed=1, epoch=0))
    assert as_lists(training_order(lengths, 16, seed=1, epoch=0)) == first
    assert as_lists(training_order(lengths, 16, seed=1, epoch=1)) != first
    assert as_lists(training_order(lengths, 16, seed=2, epoch=0)) != first


def test_rows_of_a_batch_change_from_epoch_to_epoch() -> None:
    lengths = random_lengths(4000)
    first, second = (
        {frozenset(rows.tolist()) for rows in training_order(lengths, 32, seed=1, epoch=epoch)} for epoch in (0, 1)
    )
    assert not first & second


def meeting_again(lengths: np.ndarray, batch_size: int, epochs: int = 12) -> float:
    """The share of pairs of rows that shared a batch in one epoch and share one again in the next."""
    again = pairs = 0
    batch_of = np.empty(len(lengths), dtype=int)
    for epoch in range(epochs):
        batches = training_order(lengths, batch_size, seed=0, epoch=epoch)
        for rows in batches if epoch else ():
            _, together = np.unique(batch_of[rows], return_counts=True)
            again += int((together * (together - 1)).sum())
            pairs += len(rows) * (len(rows) - 1)
        for number, rows in enumerate(batches):
            batch_of[rows] = number
    return again / pairs


@pytest.mark.parametrize(("rows", "batch_size"), [(100, 8), (100, 32), (500, 8), (500, 32), (2000, 32)])
def test_in_a_set_of_few_batches_rows_meet_again_by_chance(rows: int, batch_size: int) -> None:
    chance = (batch_size - 1) / (rows - 1)
    assert meeting_again(random_lengths(rows), batch_size) == pytest.approx(chance, rel=0.15)


@pytest.mark.parametrize(("rows", "batch_size"), [(500, 8), (500, 32), (2000, 32)])
def test_labels_are_as_even_over_few_batches_as_shuffled_though_length_tells_of_them(
    rows: int, batch_size: int
) -> None:
    lengths = random_lengths(rows)
    labels = lengths > np.median(lengths)
    shares = [
        labels[batch].mean()
        for epoch in range(30)
        for batch in training_order(lengths, batch_size, seed=0, epoch=epoch)
        if len(batch) == batch_size
    ]
    drawn = np.sqrt(labels.mean() * (1 - labels.mean()) / batch_size * (rows - batch_size) / (rows - 1))
    assert np.std(shares) == pytest.approx(drawn, rel=0.15)


@pytest.mark.parametrize(("rows", "share"), [(2048, 0.18), (8500, 0.06), (40_000, 0.03)])
def test_batches_of_a_large_set_hold_little_padding(rows: int, share: float) -> None:
    lengths = random_lengths(rows)
    assert 1 - lengths.sum() / padded_tokens(training_order(lengths, 32, seed=0, epoch=0), lengths) < share


@pytest.mark.parametrize("rows", [100, 500, 2000, 8500])
def test_micro_batches_on_a_cpu_hold_little_padding(rows: int) -> None:
    lengths, most = random_lengths(rows), padding_worth_a_pass(torch.device("cpu"))
    batches = training_order(lengths, 32, seed=0, epoch=0)
    pieces = [rows[part] for rows in batches for part in micro_batches(lengths[rows], 1, most)]
    assert 1 - lengths.sum() / padded_tokens(pieces, lengths) < 0.22
    assert len(pieces) < 4 * len(batches)


def test_a_pass_is_worth_more_padding_where_tokens_are_cheaper_and_on_a_gpu_a_batch_is_one() -> None:
    assert padding_worth_a_pass(torch.device("cuda"), "bf16") is None
    cpu = torch.device("cpu")
    assert padding_worth_a_pass(cpu, "bf16") > padding_worth_a_pass(cpu, "fp32") > 0


@pytest.mark.parametrize("rows", [1, 5, 64, 1001])
def test_evaluation_covers_every_row_longest_first(rows: int) -> None:
    lengths = random_lengths(rows)
    batches = evaluation_order(lengths, 8)
    flat = np.concatenate(batches)
    assert np.sort(flat).tolist() == list(range(rows))
    assert (np.diff(lengths[flat]) <= 0).all()
    assert max(map(len, batches)) <= 8


def test_a_cross_batch_is_padded_to_its_own_longest_row() -> None:
    split = split_of(np.array([3, 9, 5]))
    batch = collate(split, np.array([2, 0]), PAD)
    assert {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in batch.items()} == {
        "input_ids": ((2, 5), torch.int64),
        "attention_mask": ((2, 5), torch.int64),
        "token_type_ids": ((2, 5), torch.int64),
        "rows": ((2,), torch.int64),
        "labels": ((2,), torch.int64),
    }
    assert batch["input_ids"].tolist() == [[102] * 5, [100] * 3 + [PAD] * 2]
    assert batch["attention_mask"].tolist() == [[1] * 5, [1] * 3 + [0] * 2]
    assert batch["token_type_ids"].tolist() == [[0, 1, 0, 1, 0], [0, 1, 0, 0, 0]]
    assert batch["rows"].tolist() == [2, 0]
    assert batch["labels"].tolist() == [20, 0]


def test_a_siamese_batch_holds_first_sentences_before_second_ones() -> None:
    split = split_of(np.array([3, 4, 2]), second=np.array([6, 1, 2]))
    batch = collate(split, np.array([0, 1]), PAD)
    assert batch["input_ids"].shape == (4, 6)
    assert batch["input_ids"][:, 0].tolist() == [100, 101, 200, 201]
    assert batch["attention_mask"].sum(dim=1).tolist() == [3, 4, 6, 1]
    assert (batch["input_ids"] == PAD).equal(batch["attention_mask"] == 0)
    assert not batch["token_type_ids"].any()
    assert batch["labels"].tolist() == [0, 10]


def test_a_sentence_that_repeats_stands_in_a_siamese_batch_once() -> None:
    a, b, c = (np.full(length, length, dtype=np.int32) for length in (3, 5, 4))
    split = TokenisedSplit([a, b, a], [np.zeros_like(x) for x in (a, b, a)], [a, c, c], np.arange(3))
    batch = collate(split, np.array([0, 1, 2]), PAD)
    assert batch["input_ids"][:, 0].tolist() == [3, 5, 4]
    assert batch["pairs"].tolist() == [0, 1, 0, 0, 2, 2]
    assert batch["attention_mask"].sum(dim=1).tolist() == [3, 5, 4]
    assert (batch["token_type_ids"].shape, batch["labels"].tolist()) == ((3, 5), [0, 1, 2])
    assert "pairs" not in collate(split, np.array([1]), PAD)
    # What differs only in length is not the same sentence.
    nearly = TokenisedSplit([np.array([7, 0])], None, [np.array([7, 0, 0])], None)
    assert len(collate(nearly, np.array([0]), PAD)["input_ids"]) == 2


def test_a_batch_has_no_token_types_and_no_labels_where_there_are_none() -> None:
    split = split_of(np.array([3, 4]), types=False, labels=False)
    assert set(collate(split, np.array([1]), PAD)) == {"input_ids", "attention_mask", "rows"}


def test_real_scores_stay_real() -> None:
    split = TokenisedSplit([np.array([1])], None, None, np.array([2.5]))
    labels = collate(split, np.array([0]), PAD)["labels"]
    assert (labels.dtype, labels.tolist()) == (torch.float32, [2.5])


@pytest.mark.parametrize("pieces", [1, 2, 3, 8, 40])
def test_micro_batches_partition_their_batch_in_order(pieces: int) -> None:
    split = split_of(random_lengths(75))
    whole = training_order(split.lengths, 16, seed=5, epoch=2)
    cut = list(training_batches(split, 16, pieces, seed=5, epoch=2, pad_token_id=PAD))
    assert len(cut) == len(whole)
    for rows, parts in zip(whole, cut, strict=True):
        assert 1 <= len(parts) == min(pieces, len(rows))
        assert torch.cat([part["rows"] for part in parts]).tolist() == rows.tolist()
        sizes = [len(part["rows"]) for part in parts]
        assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("most", [0, 1, 20, 10_000])
@pytest.mark.parametrize("pieces", [1, 3])
def test_a_micro_batch_is_cut_no_more_often_than_its_padding_asks_for(pieces: int, most: int) -> None:
    split = split_of(random_lengths(40))
    for batch, parts in zip(
        training_order(split.lengths, 20, seed=5, epoch=2),
        training_batches(split, 20, pieces, seed=5, epoch=2, pad_token_id=PAD, most_padding=most),
        strict=True,
    ):
        assert torch.cat([part["rows"] for part in parts]).tolist() == batch.tolist()
        padding = [int((part["attention_mask"] == 0).sum()) for part in parts]
        assert max(padding) <= most
        assert len(parts) >= pieces
        if most == 10_000:
            assert len(parts) == pieces
        elif pieces == 1:  # one row more, and a piece would hold too much
            for shorter, part in pairwise(parts):
                gap = part["input_ids"].shape[1] - int(shorter["attention_mask"][-1].sum())
                assert int((part["attention_mask"] == 0).sum()) + gap > most


def test_an_epoch_resumed_in_the_middle_sees_the_batches_that_were_left() -> None:
    split = split_of(random_lengths(100))

    def rows(first: int) -> list[list[int]]:
        batches: list[list[Batch]] = list(training_batches(split, 8, 1, seed=1, epoch=0, pad_token_id=PAD, first=first))
        return [batch["rows"].tolist() for (batch,) in batches]

    assert rows(5) == rows(0)[5:]
    assert rows(13) == []


def test_a_siamese_row_is_as_long_as_its_longer_sentence() -> None:
    assert split_of(np.array([3, 9]), second=np.array([5, 2])).lengths.tolist() == [5, 9]


@pytest.fixture(autouse=True)
def without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory can be pinned only where there is a GPU."""
    if not torch.cuda.is_available():
        monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)


def numbered(count: int, made: list[int]) -> Iterator[list[Piece]]:
    for number in range(count):
        made.append(number)
        yield [Piece({"rows": torch.tensor([number, piece])}) for piece in range(2)]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 20])
@pytest.mark.parametrize("ahead", [1, 2, 5])
def test_all_come_in_their_order(count: int, ahead: int) -> None:
    found = [[piece.batch["rows"].tolist() for piece in pieces] for pieces in prefetched(numbered(count, []), ahead)]
    assert found == [[[number, 0], [number, 1]] for number in range(count)]


def test_only_so_many_are_made_ahead() -> None:
    made: list[int] = []
    batches = prefetched(numbered(20, made), ahead=3)
    next(batches)
    batches.close()  # waits for the thread
    assert 1 <= len(made) <= 4


def test_an_error_stands_in_the_place_of_its_batch() -> None:
    def broken() -> Iterator[list[Piece]]:
        yield [Piece({"rows": torch.tensor([0])})]
        raise ValueError("row 7")

    batches = prefetched(broken())
    assert len(next(batches)) == 1
    with pytest.raises(ValueError, match="row 7"):
        next(batches)
