"""Leakage: rows of one split whose text is also in another."""

import re

import numpy as np
import pandas as pd

_NOT_ALPHANUMERIC = re.compile(r"[\W_]+")


def text_key(text: str) -> str:
    """``text`` without case, punctuation and white space. Two texts with the same key count as the same."""
    # A text of punctuation alone stays as it is, or all such texts would count as the same.
    return _NOT_ALPHANUMERIC.sub("", text.casefold()) or text


def row_keys(rows: pd.DataFrame) -> list[tuple[str, ...]]:
    """One key a row; a pair has the same key in either order."""
    keys = [[text_key(text) for text in rows[column]] for column in ("text_a", "text_b") if column in rows]
    return [tuple(sorted(parts)) for parts in zip(*keys, strict=True)]


def overlapping_rows(train: pd.DataFrame, other: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Boolean masks over ``train`` and ``other``: the rows whose text is in both."""
    train_keys, other_keys = row_keys(train), row_keys(other)
    shared = set(train_keys) & set(other_keys)
    in_other, in_train = ([key in shared for key in keys] for keys in (train_keys, other_keys))
    return np.array(in_other, dtype=bool), np.array(in_train, dtype=bool)
