"""Equal and nearly equal rows are counted as a comparison of every pair would count them."""

import re

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.data import duplicates
from pipeline.data.duplicates import LEAST_WORDS, find_repeats
from pipeline.data.overlap import row_keys

WORDS = [f"w{chr(97 + number)}" for number in range(12)]
some = st.lists(st.sampled_from(WORDS), min_size=1, max_size=12)
most = st.lists(st.sampled_from(WORDS), min_size=7, max_size=12, unique=True)
texts = st.one_of(some, most, most).map(" ".join)


def rows(values: list[str]) -> pd.DataFrame:
    return pd.DataFrame({"id": [str(row) for row in range(len(values))], "text_a": values})


def are_near(one: set[str], other: set[str]) -> bool:
    return min(len(one), len(other)) >= LEAST_WORDS and len(one - other) <= 1 and len(other - one) <= 1


@settings(max_examples=100, deadline=None)
@given(st.lists(texts, min_size=1, max_size=14), st.lists(texts, max_size=8))
def test_the_counts_are_those_of_every_pair(train: list[str], dev: list[str]) -> None:
    found = find_repeats({"train": rows(train), "dev": rows(dev)})
    train_keys, dev_keys = row_keys(rows(train)), row_keys(rows(dev))
    assert found.equal == {
        "train": len(train) - len(set(train_keys)), "dev": len(dev) - len(set(dev_keys))
    }  # fmt: skip
    assert found.equal_in_train == {"dev": sum(key in train_keys for key in dev_keys)}

    def near(text: str, key: tuple[str, ...]) -> bool:
        words = set(re.findall(r"\w+", text))
        others = (other for other, own in zip(train, train_keys, strict=True) if own != key)
        return any(are_near(words, set(re.findall(r"\w+", other))) for other in others)

    assert found.near_in_train == {
        "train": sum(near(text, key) for text, key in zip(train, train_keys, strict=True)),
        "dev": sum(
            near(text, key) and key not in train_keys for text, key in zip(dev, dev_keys, strict=True)
        ),
    }  # fmt: skip
    assert found.compared == found.texts == len({*train_keys, *dev_keys})


def test_digits_and_punctuation_do_not_tell_texts_apart_and_columns_do() -> None:
    long = "order 1234 of the red lamp came two days late"
    found = find_repeats({"train": rows([long]), "dev": rows([long.replace("1234", "98,") + "!"])})
    assert found.near_in_train == {"train": 0, "dev": 1}
    pairs = rows([long]).assign(text_b="x"), rows(["x"]).assign(text_b=long + " again")
    assert find_repeats(dict(zip(("train", "dev"), pairs, strict=True))).near_in_train["dev"] == 0


def test_a_large_table_is_compared_in_part_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duplicates, "MOST_WORDS", 30)
    found = find_repeats({"train": rows([" ".join(WORDS) + f" x{number}x" for number in "abcdef"])})
    assert (found.compared, found.texts) == (3, 6)
