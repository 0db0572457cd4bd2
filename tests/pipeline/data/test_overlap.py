"""Two texts are the same for leakage whatever their case, punctuation and order in a pair; other texts are not."""

import random
import re
import string

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.data.cells import text_key
from pipeline.data.split import overlapping_rows, row_keys, sharing_rows
from stages import check_task


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
    assert overlapping_rows(train, dev).tolist() == [False, True, True]
    assert overlapping_rows(dev, train).tolist() == [True, False, True]


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
    expected = [[text_key(a) == text_key(b) for b in other["text_a"]] for a in train["text_a"]]
    assert overlapping_rows(train, other).tolist() == [any(line) for line in expected]
    assert overlapping_rows(other, train).tolist() == [any(column) for column in zip(*expected, strict=True)]


WORDS = [f"w{chr(97 + number)}" for number in range(12)]
some = st.lists(st.sampled_from(WORDS), min_size=1, max_size=12)
most = st.lists(st.sampled_from(WORDS), min_size=7, max_size=12, unique=True)
texts = st.one_of(some, most, most).map(" ".join)


def rows(values: list[str]) -> pd.DataFrame:
    return pd.DataFrame({"id": [str(row) for row in range(len(values))], "text_a": values})


def are_near(one: set[str], other: set[str]) -> bool:
    return min(len(one), len(other)) >= check_task.LEAST_WORDS and len(one - other) <= 1 and len(other - one) <= 1


def counts(**splits: list[str]) -> dict[tuple[str, str], int]:
    """The counts of the report, by its verb and by split."""
    found = [re.match(r"[\w -]+: (\d+) of the (\w+) rows (\w+)", line) for line in reported(**splits)]
    return {(line[3], line[2]): int(line[1]) for line in found if line}


def reported(**splits: list[str]) -> list[str]:
    return check_task.repeat_lines({split: rows(texts) for split, texts in splits.items()})


@settings(max_examples=100, deadline=None)
@given(st.lists(texts, min_size=1, max_size=14), st.lists(texts, max_size=8))
def test_the_counts_are_those_of_every_pair(train: list[str], dev: list[str]) -> None:
    train_keys, dev_keys = (list(row_keys(rows(part))) for part in (train, dev))

    def near(text: str, key: tuple[str, ...]) -> bool:
        words = set(re.findall(r"\w+", text))
        others = (other for other, own in zip(train, train_keys, strict=True) if own != key)
        return any(are_near(words, set(re.findall(r"\w+", other))) for other in others)

    expected = {
        ("repeat", "train"): len(train) - len(set(train_keys)),
        ("repeat", "dev"): len(dev) - len(set(dev_keys)),
        ("are", "dev"): sum(key in train_keys for key in dev_keys),
        ("differ", "train"): sum(near(text, key) for text, key in zip(train, train_keys, strict=True)),
        ("differ", "dev"): sum(
            near(text, key) and key not in train_keys for text, key in zip(dev, dev_keys, strict=True)
        ),
    }
    assert counts(train=train, dev=dev) == {key: count for key, count in expected.items() if count}


def test_digits_and_punctuation_do_not_tell_texts_apart_and_columns_do() -> None:
    long = "order 1234 of the red lamp came two days late"
    assert counts(train=[long], dev=[long.replace("1234", "98,") + "!"]) == {("differ", "dev"): 1}
    pairs = rows([long]).assign(text_b="x"), rows(["x"]).assign(text_b=long + " again")
    lines = check_task.repeat_lines(dict(zip(("train", "dev"), pairs, strict=True)))
    assert lines == ["no equal texts, no near-duplicates"]


def test_a_large_table_is_compared_in_part_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_task, "MOST_WORDS", 30)
    lines = reported(train=[" ".join(WORDS) + f" x{number}x" for number in "abcdef"])
    assert lines[-1] == "near-duplicates: only 3 of 6 texts were compared"
