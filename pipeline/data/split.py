"""Split labelled rows into train, dev and test, or cut them in two: one part selects, the other scores."""

import hashlib
from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from pipeline.data.label_sets import as_sets
from pipeline.data.overlap import row_keys, text_key
from pipeline.data.sample import positions_by, strata
from pipeline.system.errors import PipelineError

_HUB = 0.05
"""Pairs are grouped by either text, unless a group would then exceed this share of the rows."""
_LOPSIDED = 0.5
"""A part of a cut has at least this share of its intended size."""


def split_rows(rows: pd.DataFrame, shares: Sequence[float], seed: int, what: str) -> list[np.ndarray]:
    """Divide the rows by ``shares`` (P,), which add up to 1; returns the row positions of the P parts, ascending.

    Rows of equal text stay together, and so do pairs that share one text, unless that links too many pairs: then
    parts may share texts (:func:`~pipeline.data.overlap.sharing_rows` counts the rows). Every class, or fifth of the
    scores, is divided by ``shares`` as nearly as its texts allow: exactly, up to rounding, if no text repeats. A class
    reaches as many parts as it has texts not shared with other classes, starting with the first; every class is in the
    first. The split does not depend on the order of the rows.

    Args:
        rows: their labels are names of classes, or tuples of them, or numbers.

    Raises:
        PipelineError: a part of ``what`` would have a single label.
    """
    groups, of_row = _groups(rows), strata(_numbered(rows["label"]))
    parts = np.zeros(len(rows), dtype=int)
    for own in _by_stratum(rows, groups, of_row, seed).values():
        for group, part in zip(own, _divided([len(group) for group in own], shares), strict=True):
            parts[group] = part
    # A class that shares all its texts with others may have followed them.
    for stratum in np.unique(of_row):
        if not (parts[of_row == stratum] == 0).any():
            parts[min((group for group in groups if (of_row[group] == stratum).any()), key=len)] = 0
    positions_of = [np.flatnonzero(parts == part) for part in range(len(shares))]
    if any(rows["label"].iloc[positions].nunique() < 2 for positions in positions_of):
        raise PipelineError(
            f"{what}: {len(rows)} rows in {len(groups)} different texts are too few for {len(shares)} splits with two"
            " labels in each: give more rows of each label, or --split 80/20 for train and dev alone"
        )
    return positions_of


def _numbered(labels: pd.Series) -> pd.Series:
    """Names of classes as numbers in alphabetical order, and tuples of names as label sets."""
    if labels.dtype.kind in "if":
        return labels
    if isinstance(labels.iloc[0], tuple):
        names = sorted({name for own in labels for name in own})
        return pd.Series(as_sets(np.array([[name in own for name in names] for own in labels])), dtype=object)
    return pd.Series(np.unique(labels.to_numpy(str), return_inverse=True)[1])


def split_added(rows: pd.DataFrame, shares: Sequence[float], seed: int) -> np.ndarray:
    """The part (n,) of ``rows`` that are added to a split whose parts have ``shares`` (P,), which add up to 1.

    Rows are grouped as in :func:`split_rows`, but a class may be in no part at all. Of every class, or fifth of the
    scores, a part gets its share rounded up or down at random, and exactly its share on average: else no row of many
    small additions would ever reach a small part.
    """
    parts, of_row = np.zeros(len(rows), dtype=int), strata(rows["label"])
    for own in _by_stratum(rows, _groups(rows), of_row, seed).values():
        size, first = sum(map(len, own)), " ".join(row_keys(rows.iloc[own[0][:1]])[0])
        offset = hashlib.sha256(f"{seed} {first}".encode()).digest()[0] / 256 + 1 / 512
        left = np.diff(np.floor(size * np.cumsum([0, *shares[:-1]]) + offset), append=size)
        for group in own:
            parts[group] = part = int(left.argmax())
            left[part] -= len(group)
    return parts


def _by_stratum(
    rows: pd.DataFrame, groups: Sequence[np.ndarray], of_row: np.ndarray, seed: int
) -> dict[str | int, list[np.ndarray]]:
    """The groups of each stratum that most of their rows belong to, the largest first, else in an order by seed."""
    keys, of_stratum = row_keys(rows), dict[str | int, list[np.ndarray]]()
    names = [hashlib.sha256(f"{seed} {min(keys[row] for row in group)}".encode()).digest() for group in groups]
    for number in sorted(range(len(groups)), key=lambda number: (-len(groups[number]), names[number])):
        values, counts = np.unique(of_row[groups[number]], return_counts=True)
        of_stratum.setdefault(values[counts.argmax()], []).append(groups[number])
    return of_stratum


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
            wanted[max(range(len(shares)), key=lambda part: (wanted[part], part))] -= 1  # of equals, the last can spare
            wanted[part] = 1
    return wanted


def text_groups(rows: pd.DataFrame) -> list[np.ndarray]:
    """Row positions in groups that share no text with one another, in any column, compared by :func:`text_key`.

    The order of the groups depends on the texts alone, not on the order of the rows.
    """
    of_row, of_text, known = _components(rows)
    members = positions_by(of_row)
    first = pd.Series(known).groupby(of_text).min()  # the first key by alphabet names a group
    return [members[number] for number in np.argsort(first.to_numpy(object), kind="stable")]


def group_numbers(rows: pd.DataFrame) -> np.ndarray:
    """The group of every row (n,) under :func:`text_groups`, numbered from 0 in order of first row."""
    return pd.factorize(_components(rows)[0])[0]


def _components(rows: pd.DataFrame) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The group of every row (n,) and of every distinct text (m,), and these texts (m,)."""
    columns = [column for column in ("text_a", "text_b") if column in rows]
    keys = pd.concat([rows[column].map(text_key) for column in columns])
    codes, known = pd.factorize(keys)
    size, positions = len(rows), np.tile(np.arange(len(rows)), len(columns))
    links = coo_matrix((np.ones(len(codes)), (positions, size + codes)), shape=2 * (size + len(known),))
    _, component = connected_components(links, directed=False)
    return component[:size], component[size:], known


def cut(rows: pd.DataFrame, share: float, seed: int, what: str) -> np.ndarray:
    """Mask (n,) of the rows in the first part, about ``share`` of them; the others form the second part.

    Rows that share a text stay together. Every class, or fifth of the scores, is divided by ``share`` as nearly as the
    groups allow; one with several groups is in both parts. The cut does not depend on the order of the rows.

    Raises:
        PipelineError: a part of ``what`` would be less than half its intended size, or have a single label.
    """
    names, codes = np.unique(strata(rows["label"]), return_inverse=True)
    # Counts by group of each class, and of all rows: (G, C + 1).
    groups = text_groups(rows)
    counts = np.array([[*np.bincount(codes[group], minlength=len(names)), len(group)] for group in groups], float)
    totals = counts.sum(axis=0)
    keys = [hashlib.sha256(f"{seed} {number}".encode()).digest() for number in range(len(groups))]
    order = sorted(range(len(groups)), key=lambda number: (-len(groups[number]), keys[number]))
    is_first, excess = np.zeros(len(groups), dtype=bool), np.zeros(len(names) + 1)
    for number in order:
        # The first part's excess if the group joins it, and if it does not.
        joined, left = excess + (1 - share) * counts[number], excess - share * counts[number]
        costs = [float((each**2 / totals).sum()) for each in (joined, left)]
        is_first[number] = costs[0] < costs[1] or (costs[0] == costs[1] and keys[number][0] % 2 == 0)
        excess = joined if is_first[number] else left
    for column in range(len(names)):
        has = counts[:, column] > 0
        for part in (True, False):
            if has.sum() > 1 and not (has & (is_first == part)).any():
                is_first[[number for number in order if has[number]][-1]] = part
    chosen = np.zeros(len(rows), dtype=bool)
    for number, group in enumerate(groups):
        chosen[group] = is_first[number]
    sizes = {True: share * len(rows), False: (1 - share) * len(rows)}
    if any(
        (chosen == part).sum() < _LOPSIDED * size or rows["label"][chosen == part].nunique() < 2
        for part, size in sizes.items()
    ):
        most = max(map(len, groups))
        raise PipelineError(
            f"{what}: {len(rows)} rows cannot be split into two parts, both large enough and with several labels, since"
            f" rows that share texts stay together (up to {most}): set another scoring for this task in scoring.tasks"
        )
    return chosen
