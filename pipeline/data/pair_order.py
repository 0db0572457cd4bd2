"""The order of pairs: random in training, both orders averaged in evaluation.

A cross-encoder reads ``[CLS] a [SEP] b [SEP]`` and answers differently for b before a, although the order means nothing
in most pair tasks (Hayes 2024 trains on random orders).
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from pipeline.data.tokens import TokenisedSplit

_STREAM = 3
"""A stream of random numbers besides those that order and mix rows."""


def swapped(rows: pd.DataFrame) -> pd.DataFrame:
    """Canonical rows with the texts of each pair swapped."""
    return rows.rename(columns={"text_a": "text_b", "text_b": "text_a"})


def in_random_order(given: TokenisedSplit, turned: TokenisedSplit, seed: int, epoch: int) -> TokenisedSplit:
    """Take each row from ``given`` or, with probability one half, from ``turned``, the same rows with texts swapped.

    The choice depends on ``(seed, epoch)`` alone, so a resumed run reads what it would have read.
    """
    turns = np.random.default_rng([seed, epoch, _STREAM]).random(len(given)) < 0.5

    def mixed(one: list[np.ndarray], other: list[np.ndarray]) -> list[np.ndarray]:
        return [b if turn else a for a, b, turn in zip(one, other, turns, strict=True)]

    types = None
    if given.types_a is not None and turned.types_a is not None:
        types = mixed(given.types_a, turned.types_a)
    return TokenisedSplit(given.ids, mixed(given.a, turned.a), types, None, given.labels)


def joined(splits: Sequence[TokenisedSplit]) -> TokenisedSplit:
    """The inputs of all ``splits``, concatenated, without labels."""
    first = splits[0]
    if len(splits) == 1:
        return first
    return TokenisedSplit(
        ids=tuple(name for split in splits for name in split.ids),
        a=[ids for split in splits for ids in split.a],
        types_a=None if first.types_a is None else [types for split in splits for types in split.types_a or ()],
        b=None if first.b is None else [ids for split in splits for ids in split.b or ()],
        labels=None,
    )
