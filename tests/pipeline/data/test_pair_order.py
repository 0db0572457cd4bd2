"""Pairs the other way round: which rows turn follows from seed and epoch, and nothing else of them changes."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from pipeline.data.batches import training_order
from pipeline.data.tokens import TokenisedSplit, in_random_order, joined, swapped, tokenise
from pipeline.models.backbone import Backbone

COUNT = 200


@pytest.fixture
def rows() -> pd.DataFrame:
    words = np.array(["the", "film", "song", "is", "good", "bad", "very"])
    rng = np.random.default_rng(0)

    def texts() -> list[str]:
        return [" ".join(rng.choice(words, rng.integers(1, 9))) for _ in range(COUNT)]

    return pd.DataFrame(
        {"id": [str(i) for i in range(COUNT)], "text_a": texts(), "text_b": texts(), "label": np.arange(COUNT)}
    )


@pytest.fixture
def orders(rows: pd.DataFrame, backbone: Backbone, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("PIPELINE_CACHE", str(tmp_path))
    return [tokenise(order, backbone.tokenizer, "cross", 12) for order in (rows, swapped(rows))]


def test_the_other_way_round_has_the_sentences_and_their_types_exchanged(orders) -> None:
    given, turned = orders
    separator = given.a[0][-1]
    short = [i for i in range(COUNT) if len(given.a[i]) < 12]
    assert len(short) > 20
    for i in short:
        first = list(given.a[i]).index(separator)
        assert [given.a[i][0], *given.a[i][first + 1 :], *given.a[i][1 : first + 1]] == turned.a[i].tolist()
        assert turned.types_a[i].sum() == first


def test_both_orders_are_as_long_so_that_batches_are_the_same(orders) -> None:
    given, turned = orders
    np.testing.assert_array_equal(given.lengths, turned.lengths)
    for epoch in (1, 2):
        mixed = in_random_order(given, turned, 5, epoch)
        found = training_order(mixed.lengths, 8, 5, epoch)
        assert all(map(np.array_equal, found, training_order(given.lengths, 8, 5, epoch)))


def test_about_half_of_the_rows_turn_each_epoch_anew_and_a_resumed_epoch_again(orders) -> None:
    given, turned = orders
    differ = [i for i in range(COUNT) if not np.array_equal(given.a[i], turned.a[i])]

    def is_turned(mixed: TokenisedSplit, row: int) -> bool:
        return np.array_equal(mixed.a[row], turned.a[row])

    def turns(seed: int, epoch: int) -> list[bool]:
        mixed = in_random_order(given, turned, seed, epoch)
        for i in range(COUNT):
            source, types = (turned.a, turned.types_a) if is_turned(mixed, i) else (given.a, given.types_a)
            np.testing.assert_array_equal(mixed.a[i], source[i])
            np.testing.assert_array_equal(mixed.types_a[i], types[i])
        np.testing.assert_array_equal(mixed.labels, given.labels)
        np.testing.assert_array_equal(mixed.lengths, [len(ids) for ids in mixed.a])
        return [is_turned(mixed, i) for i in differ]

    assert turns(1, 1) == turns(1, 1)
    assert 0.35 < np.mean(turns(1, 1)) < 0.65
    assert turns(1, 1) != turns(1, 2)
    assert turns(1, 1) != turns(2, 1)


def test_a_pair_that_is_too_long_keeps_both_sentences_in_either_order(orders) -> None:
    for split in orders:
        for ids, types in zip(split.a, split.types_a, strict=True):
            assert len(ids) <= 12
            assert types[1] == 0  # a word of each, beside [CLS] and the two [SEP]
            assert 2 <= types.sum() <= len(ids) - 3


def test_inputs_of_both_orders_stand_one_after_the_other(orders) -> None:
    both: TokenisedSplit = joined(orders)
    assert len(both) == 2 * COUNT
    assert both.labels is None
    for name in ("a", "types_a"):
        expected = [ids.tolist() for order in orders for ids in getattr(order, name)]
        assert [ids.tolist() for ids in getattr(both, name)] == expected
    assert both.lengths.tolist() == [*orders[0].lengths, *orders[1].lengths]
    assert joined(orders[:1]) is orders[0]
