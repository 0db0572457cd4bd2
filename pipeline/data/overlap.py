"""Rows whose texts are equal, or nearly so: leakage between splits, and repeats within one."""

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import pandas as pd

_NOT_ALPHANUMERIC = re.compile(r"[\W_]+")
_ASCII = bytes(range(128))
_NOT_ALPHANUMERIC_ASCII = bytes(code for code in _ASCII if not chr(code).isalnum())
LEAST_WORDS = 8
"""In a shorter text a single word may change the meaning."""
MOST_WORDS = 5_000_000
"""Rows are compared up to this many different words in total, which takes some seconds."""

_WORD = re.compile(r"\w+")
_DIGITS = re.compile(r"\d+")


def text_key(text: str) -> str:
    """``text`` without case, punctuation and white space, in one Unicode form.

    Two texts with the same key count as the same.
    """
    if text.isascii():  # most are: five times as fast, and every text is read several times
        key = text.encode().translate(None, _NOT_ALPHANUMERIC_ASCII).lower().decode()
    else:
        key = _NOT_ALPHANUMERIC.sub("", unicodedata.normalize("NFC", text).casefold())
    # A text of punctuation alone stays as it is, or all such texts would count as the same.
    return key or text


def row_keys(rows: pd.DataFrame) -> Iterator[tuple[str, ...]]:
    """One key a row; a pair has the same key in either order."""
    keys = [map(text_key, rows[column]) for column in ("text_a", "text_b") if column in rows]
    return (tuple(sorted(parts)) for parts in zip(*keys, strict=True))


def row_hashes(rows: pd.DataFrame) -> np.ndarray:
    """64-bit hashes of the keys of :func:`row_keys`, uint64 (n,), the same on every machine.

    Between a million rows and a million others, unequal keys share a hash with a probability of 1 in 18 million.
    """
    hashes = (blake2b("\0".join(key).encode(), digest_size=8).digest() for key in row_keys(rows))
    return np.fromiter((int.from_bytes(digest, "little") for digest in hashes), np.uint64, len(rows))


def overlapping_rows(rows: pd.DataFrame, others: pd.DataFrame) -> np.ndarray:
    """Mask (n,) of the ``rows`` whose text is also in ``others``."""
    keys = list(row_keys(rows))
    shared = set(keys).intersection(row_keys(others))  # keeps none of `others`, which may have millions of rows
    return np.fromiter((key in shared for key in keys), bool, len(keys))


def sharing_rows(train: pd.DataFrame, other: pd.DataFrame) -> np.ndarray:
    """Mask (n,) of the rows of ``other`` with a text of ``train``; a pair's texts are looked up one by one."""
    columns = [column for column in ("text_a", "text_b") if column in train]
    known = {text_key(text) for column in columns for text in train[column]}
    are_known = (map(known.__contains__, map(text_key, other[column])) for column in columns)
    return np.fromiter(map(any, zip(*are_known, strict=True)), bool, len(other))


def first_overlap(train: pd.DataFrame, parts: Sequence[pd.DataFrame]) -> np.ndarray:
    """For every row of ``train`` (n,), the position of the first of ``parts`` that contains its text, or -1.

    ``train`` is read once, however many parts there are.
    """
    first: dict[tuple[str, ...], int] = {}
    for position, rows in enumerate(parts):
        for key in row_keys(rows):
            first.setdefault(key, position)
    return np.fromiter((first.get(key, -1) for key in row_keys(train)), np.int64, len(train))


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
    keys = {split: pd.Series(list(row_keys(rows)), dtype=object) for split, rows in splits.items()}
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
