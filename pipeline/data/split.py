"""Split labelled rows into train, dev and test."""

import hashlib
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pandas as pd

from pipeline.data.cut import text_groups
from pipeline.data.overlap import row_keys
from pipeline.data.strata import positions_by, strata
from pipeline.system.errors import PipelineError, shortened

_HUB = 0.05
"""Pairs are grouped by either text, unless a group would then exceed this share of the rows."""


def split_rows(rows: pd.DataFrame, shares: Sequence[float], seed: int, what: str) -> list[np.ndarray]:
    """Divide the rows by ``shares`` (P,), which add up to 1; returns the row positions of the P parts, ascending.

    Rows of equal text stay together, and so do pairs that share one text, unless that links too many pairs: then
    parts may share texts (:func:`~pipeline.data.overlap.sharing_rows` counts the rows). Every class, or fifth of the
    scores, is divided by ``shares`` as nearly as its texts allow: exactly, up to rounding, if no text repeats. A class
    reaches as many parts as it has texts not shared with other classes, starting with the first; every class is in the
    first. The split does not depend on the order of the rows.

    Raises:
        PipelineError: a part of ``what`` would have a single label.
    """
    groups, keys = _groups(rows), row_keys(rows)
    names = [hashlib.sha256(f"{seed} {min(keys[row] for row in group)}".encode()).digest() for group in groups]
    order = sorted(range(len(groups)), key=lambda number: (-len(groups[number]), names[number]))
    of_row = strata(rows["label"])
    parts = np.zeros(len(rows), dtype=int)
    of_stratum: dict[str | int, list[np.ndarray]] = {}
    for number in order:
        values, counts = np.unique(of_row[groups[number]], return_counts=True)
        of_stratum.setdefault(values[counts.argmax()], []).append(groups[number])
    for stratum in sorted(of_stratum):
        own = of_stratum[stratum]
        for group, part in zip(own, _divided([len(group) for group in own], shares), strict=True):
            parts[group] = part
    # A class that shares all its texts with others may have followed them.
    for stratum in np.unique(of_row):
        if not (parts[of_row == stratum] == 0).any():
            parts[min((group for group in groups if (of_row[group] == stratum).any()), key=len)] = 0
    positions_of = [np.flatnonzero(parts == part) for part in range(len(shares))]
    if any(rows["label"].iloc[positions].nunique() < 2 for positions in positions_of):
        raise PipelineError(f"{what}: {_too_few(rows, groups, len(shares))}")
    return positions_of


def _too_few(rows: pd.DataFrame, groups: Sequence[np.ndarray], parts: int) -> str:
    """Why some of the ``parts`` have fewer than two labels, and what to do."""
    texts = Counter(label for group in groups for label in rows["label"].iloc[group].unique())
    (first, most), (second, least), *_ = texts.most_common()
    what = f"{len(rows)} rows in {len(groups)} different texts are"
    if least < parts and rows["label"].dtype.kind != "f":
        but, count = (f" but {shortened(first)}", least) if most >= parts else ("", most)
        which = f"label {shortened(second)} has" if but and len(texts) == 2 else f"no label{but} has more than"
        what = f"{which} {count} different text{'' if count == 1 else 's'},"
    remedy = ", or --split 80/20 for train and dev alone" if parts > 2 and least > 1 else ""
    return f"{what} too few for {parts} splits with two labels in each: give more rows{remedy}"


def _groups(rows: pd.DataFrame) -> list[np.ndarray]:
    """Row positions in groups that share a text, in either column of pairs, compared by :func:`text_key`.

    If that would link too many pairs (one query with many passages), only pairs of the same two texts are a group.
    """
    groups = text_groups(rows)
    if "text_b" not in rows or max(map(len, groups)) <= max(2, _HUB * len(rows)):
        return groups
    return positions_by(pd.factorize(pd.Series(row_keys(rows), dtype=object))[0])


def _divided(sizes: Sequence[int], shares: Sequence[float]) -> list[int]:
    """The part for every group of a stratum, given their ``sizes``, the largest first."""
    wanted = _targets(sum(sizes), min(len(sizes), len(shares)), shares)
    left = list(wanted)
    parts = []
    for size in sizes:
        part = max(range(len(shares)), key=lambda part: (left[part], -part))
        parts.append(part)
        left[part] -= size
    # Large groups may have filled the first parts past their targets.
    for part in range(min(len(sizes), len(shares))):
        if part not in parts:
            last = max(number for number, other in enumerate(parts) if parts.count(other) > 1)
            parts[last] = part
    return parts


def _targets(total: int, filled: int, shares: Sequence[float]) -> list[int]:
    """``total`` divided by ``shares`` with largest remainders; the first ``filled`` parts have at least 1."""
    exact = [total * share for share in shares]
    wanted = [int(number) for number in exact]
    by_remainder = sorted(range(len(shares)), key=lambda part: (wanted[part] - exact[part], part))
    for part in by_remainder[: total - sum(wanted)]:
        wanted[part] += 1
    for part in range(filled):
        if wanted[part] == 0:
            wanted[wanted.index(max(wanted))] -= 1
            wanted[part] = 1
    return wanted
