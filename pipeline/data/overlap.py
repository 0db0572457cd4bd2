"""Leakage: rows of one split whose text is also in another."""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from hashlib import blake2b

import numpy as np
import pandas as pd

_NOT_ALPHANUMERIC = re.compile(r"[\W_]+")
_ASCII = bytes(range(128))
_NOT_ALPHANUMERIC_ASCII = bytes(code for code in _ASCII if not chr(code).isalnum())


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


def row_keys(rows: pd.DataFrame) -> list[tuple[str, ...]]:
    """One key a row; a pair has the same key in either order."""
    return list(_keys(rows))


def row_hashes(rows: pd.DataFrame) -> np.ndarray:
    """64-bit hashes of the keys of :func:`row_keys`, uint64 (n,), the same on every machine.

    Between a million rows and a million others, unequal keys share a hash with a probability of 1 in 18 million.
    """
    hashes = (blake2b("\0".join(key).encode(), digest_size=8).digest() for key in _keys(rows))
    return np.fromiter((int.from_bytes(digest, "little") for digest in hashes), np.uint64, len(rows))


def _keys(rows: pd.DataFrame) -> Iterator[tuple[str, ...]]:
    keys = [map(text_key, rows[column]) for column in ("text_a", "text_b") if column in rows]
    return (tuple(sorted(parts)) for parts in zip(*keys, strict=True))


def overlapping_rows(train: pd.DataFrame, other: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Boolean masks over ``train`` and ``other``: the rows whose text is in both."""
    other_keys = row_keys(other)
    # Only the keys of `other` are kept: `train` may have millions of rows.
    numbers = {key: number for number, key in enumerate(set(other_keys))}
    matches = np.fromiter((numbers.get(key, -1) for key in _keys(train)), np.int64, len(train))
    shared = set(matches.tolist())
    return matches >= 0, np.array([numbers[key] in shared for key in other_keys], dtype=bool)


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
        for key in _keys(rows):
            first.setdefault(key, position)
    return np.fromiter((first.get(key, -1) for key in _keys(train)), np.int64, len(train))
