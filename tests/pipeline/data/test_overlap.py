"""Two texts are the same for leakage whatever their case, punctuation and order in a pair; other texts are not."""

import random
import string

import pandas as pd
import pytest

from pipeline.data.overlap import overlapping_rows, row_keys, sharing_rows, text_key


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("A good film.", "a good film", True),
        ("a good-film !", "A  GOOD\tFilm", True),
        ("it's", "its", True),
        ("snake_case", "snake case", True),
        ("STRASSE", "straße", True),
        ("f\u00fcr", "fu\u0308r", True),  # one letter, or a letter and its dots
        ("a good film", "a good firm", False),
        ("10", "1 000", False),
        ("!!!", "...", False),
        ("!!!", "!!!", True),
        ("¿", "a", False),
    ],
)
def test_case_punctuation_and_blanks_do_not_tell_texts_apart(first: str, second: str, same: bool) -> None:
    assert (text_key(first) == text_key(second)) is same


def test_a_pair_is_the_same_in_either_order_and_its_sentences_do_not_run_together() -> None:
    pairs = pd.DataFrame({"text_a": ["one", "two", "on"], "text_b": ["two", "ONE", "etwo"]})
    first, swapped, other = row_keys(pairs)
    assert first == swapped != other


def test_a_pair_needs_both_its_sentences_to_overlap() -> None:
    train = pd.DataFrame({"text_a": ["a", "b", "c"], "text_b": ["x", "y", "z"]})
    dev = pd.DataFrame({"text_a": ["Y!", "a", "c"], "text_b": ["b", "y", "z"]})
    in_train, in_dev = overlapping_rows(train, dev)
    assert in_train.tolist() == [False, True, True]
    assert in_dev.tolist() == [True, False, True]


def test_a_pair_shares_a_text_that_stands_in_either_column_of_another() -> None:
    train = pd.DataFrame({"text_a": ["a", "b"], "text_b": ["x", "y"]})
    dev = pd.DataFrame({"text_a": ["Y!", "a", "c", "c"], "text_b": ["c", "c", "X", "z"]})
    assert sharing_rows(train, dev).tolist() == [True, True, True, False]
    assert sharing_rows(train[["text_a"]], dev[["text_a"]]).tolist() == [False, True, False, False]


def noisy_rows(rng: random.Random, size: int) -> pd.DataFrame:
    """Few different words, in many spellings that count as the same."""
    noise = string.punctuation + " "
    words = ["ab"[rng.randrange(2)] * rng.randrange(1, 5) for _ in range(size)]
    return pd.DataFrame({"text_a": [rng.choice(noise) + rng.choice((w, w.upper())) for w in words]})


@pytest.mark.parametrize("seed", range(5))
def test_both_masks_agree_with_looking_at_every_pair_of_rows(seed: int) -> None:
    rng = random.Random(seed)
    train, other = noisy_rows(rng, 6), noisy_rows(rng, 9)
    masks = overlapping_rows(train, other)
    expected = [[text_key(a) == text_key(b) for b in other["text_a"]] for a in train["text_a"]]
    assert masks[0].tolist() == [any(line) for line in expected]
    assert masks[1].tolist() == [any(column) for column in zip(*expected, strict=True)]


def test_splits_apart_share_nothing() -> None:
    in_train, in_dev = overlapping_rows(pd.DataFrame({"text_a": ["a", "b"]}), pd.DataFrame({"text_a": ["c"]}))
    assert (in_train.dtype, in_dev.dtype) == (bool, bool)
    assert not in_train.any()
    assert not in_dev.any()
