"""Rows of a task's splits that are equal, or nearly so."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from pipeline.data.overlap import row_keys

LEAST_WORDS = 8
"""In a shorter text a single word may change the meaning."""
MOST_WORDS = 5_000_000
"""Rows are compared up to this many different words in total, which takes some seconds."""

_WORD = re.compile(r"\w+")
_DIGITS = re.compile(r"\d+")


@dataclass(frozen=True)
class Repeats:
    """How many rows of each split are equal or nearly equal to others, as :func:`row_keys` compares them."""

    equal: dict[str, int]
    """Rows that repeat the text of an earlier row of the split."""
    equal_in_train: dict[str, int]
    """Rows of the other splits whose text is also in train."""
    near_in_train: dict[str, int]
    """Rows with a near-duplicate but no exact one in train; for train itself, rows with any near-duplicate."""
    compared: int
    """How many different texts were compared for near-duplicates."""
    texts: int
    """How many different texts there are."""


def find_repeats(splits: Mapping[str, pd.DataFrame]) -> Repeats:
    """Count the repeats in canonical rows by split; one split is ``train``.

    Near-duplicates differ in one word, which is added, left out or changed, among at least :data:`LEAST_WORDS`
    different ones. Case, order, punctuation and digits do not count.
    """
    keys = {split: pd.Series(row_keys(rows), dtype=object) for split, rows in splits.items()}
    texts = pd.concat([rows.assign(key=keys[split]) for split, rows in splits.items()], ignore_index=True)
    texts = texts.drop_duplicates("key")
    train = set(keys["train"])
    near, compared = _near(texts, texts["key"].isin(train).to_numpy())
    near_keys = set(texts["key"].to_numpy()[near])
    in_train = {split: own.isin(train) for split, own in keys.items()}
    return Repeats(
        equal={split: int(own.duplicated().sum()) for split, own in keys.items()},
        equal_in_train={split: int(repeated.sum()) for split, repeated in in_train.items() if split != "train"},
        near_in_train={
            split: int((own.isin(near_keys) & (~in_train[split] | (split == "train"))).sum())
            for split, own in keys.items()
        },
        compared=compared,
        texts=len(texts),
    )


def _near(texts: pd.DataFrame, in_train: np.ndarray) -> tuple[np.ndarray, int]:
    """Mask (n,) of the distinct texts with a near-duplicate in train, and how many texts were compared.

    A text's signature is the XOR of its words' random hashes. Two texts differ in one word if leaving out at most one
    word from each gives equal signatures, so sorting these signatures finds all pairs in O(n log n).
    """
    words: list[str] = []
    long, sizes = list[int](), list[int]()
    columns = [texts[column].tolist() for column in ("text_a", "text_b") if column in texts]
    compared = 0
    for owner, row in enumerate(zip(*columns, strict=True)):
        if len(words) >= MOST_WORDS:
            break
        compared += 1
        # The same word in the two texts of a pair counts as two.
        own = {
            f"{place}{word}"
            for place, text in enumerate(row)
            for word in _WORD.findall(_DIGITS.sub("0", text.casefold()))
        }
        if len(own) >= LEAST_WORDS:
            words.extend(own)
            long.append(owner)
            sizes.append(len(own))
    near = np.zeros(len(texts), dtype=bool)
    if not long:
        return near, compared
    codes, known = pd.factorize(np.array(words, dtype=object))
    hashes = np.random.default_rng(0).integers(2**64, size=len(known), dtype=np.uint64)[codes]
    whole = np.bitwise_xor.reduceat(hashes, np.cumsum([0, *sizes[:-1]]))
    signatures = np.concatenate([whole, np.repeat(whole, sizes) ^ hashes])
    order = np.argsort(signatures, kind="stable")
    owners = np.concatenate([long, np.repeat(long, sizes)])[order]
    starts = np.flatnonzero(np.diff(signatures[order], prepend=~signatures[order][:1]))
    from_train = np.add.reduceat(in_train[owners].astype(int), starts)
    others = np.repeat(from_train, np.diff([*starts, len(owners)])) - in_train[owners]
    near[owners[others > 0]] = True
    return near, compared
