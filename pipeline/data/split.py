"""Rows by their texts: equal ones, and divisions that keep them together.

Labelled rows are divided by texts and classes: into train, dev and test, in two, or into a sample and the rest.
"""

import hashlib
from collections.abc import Iterator, Sequence
from hashlib import blake2b

import numpy as np
import pandas as pd
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from pipeline.data.cells import text_key
from pipeline.data.labels import are_sets, as_matrix, as_sets
from pipeline.system.errors import PipelineError

_HUB = 0.05
"""Pairs are grouped by either text, unless a group would then exceed this share of the rows."""
_LOPSIDED = 0.5
"""A part of a cut has at least this share of its intended size."""
_BINS = 5  # of scores


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


def split_rows(rows: pd.DataFrame, shares: Sequence[float], seed: int, what: str) -> list[np.ndarray]:
    """Divide the rows by ``shares`` (P,), which add up to 1; returns the row positions of the P parts, ascending.

    Rows of equal text stay together, and so do pairs that share one text, unless that links too many pairs: then
    parts may share texts (:func:`sharing_rows` counts the rows). Every class, or fifth of the
    scores, is divided by ``shares`` as nearly as its texts allow: exactly, up to rounding, if no text repeats. A class
    reaches as many parts as it has texts not shared with other classes, starting with the first; every class is in the
    first. The split does not depend on the order of the rows.

    Args:
        rows: their labels are names of classes, or tuples of them, or numbers.

    Raises:
        PipelineError: a part of ``what`` would have a single label.
    """
    labels = rows["label"]
    if isinstance(labels.iloc[0], tuple):  # as label sets
        names = sorted({name for own in labels for name in own})
        labels = pd.Series(as_sets(np.array([[name in own for name in names] for own in labels])), dtype=object)
    elif labels.dtype.kind not in "if":  # as numbers in alphabetical order
        labels = pd.Series(np.unique(labels.to_numpy(str), return_inverse=True)[1])
    groups, of_row = _groups(rows), strata(labels)
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


def split_added(rows: pd.DataFrame, shares: Sequence[float], seed: int) -> np.ndarray:
    """The part (n,) of ``rows`` that are added to a split whose parts have ``shares`` (P,), which add up to 1.

    Rows are grouped as in :func:`split_rows`, but a class may be in no part at all. Of every class, or fifth of the
    scores, a part gets its share rounded up or down at random, and exactly its share on average: else no row of many
    small additions would ever reach a small part.
    """
    parts, of_row = np.zeros(len(rows), dtype=int), strata(rows["label"])
    for own in _by_stratum(rows, _groups(rows), of_row, seed).values():
        size, first = sum(map(len, own)), " ".join(next(row_keys(rows.iloc[own[0][:1]])))
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
    keys, of_stratum = list(row_keys(rows)), dict[str | int, list[np.ndarray]]()
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
    return _positions_by(pd.factorize(pd.Series(list(row_keys(rows)), dtype=object))[0])


def _divided(sizes: Sequence[int], shares: Sequence[float]) -> list[int]:
    """The part for every group of a stratum, given their ``sizes``, the largest first."""
    filled = range(min(len(sizes), len(shares)))  # these parts get at least a group
    left: list[int] = _rounded(sum(sizes) * np.array(shares), sum(sizes)).tolist()
    for part in filled:
        if left[part] == 0:
            left[max(range(len(shares)), key=lambda part: (left[part], part))] -= 1  # of equals, the last can spare
            left[part] = 1
    parts = []
    for size in sizes:
        part = max(range(len(shares)), key=lambda part: (left[part], -part))
        parts.append(part)
        left[part] -= size
    # Large groups may have filled the first parts past their targets.
    for part in filled:
        if part not in parts:
            last = max(number for number, other in enumerate(parts) if parts.count(other) > 1)
            parts[last] = part
    return parts


def text_groups(rows: pd.DataFrame) -> list[np.ndarray]:
    """Row positions in groups that share no text with one another, in any column, compared by :func:`text_key`.

    The order of the groups depends on the texts alone, not on the order of the rows.
    """
    of_row, of_text, known = _components(rows)
    members = _positions_by(of_row)
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


def strata(labels: pd.Series) -> np.ndarray:
    """The stratum of every row (n,): its class, or the fifth of the scores that it falls in.

    Of several labels it is the rarest, and -1 without any. The rarest class is thus divided exactly, as in the first
    round of iterative stratification (Sechidis et al. 2011). Whole label sets would mostly occur once.
    """
    values = labels.to_numpy()
    if are_sets(values):
        held = as_matrix(values)
        return np.where(held.any(axis=1), np.where(held, held.sum(axis=0), len(held) + 1).argmin(axis=1), -1)
    if values.dtype.kind != "f":
        return values
    return np.digitize(values, np.quantile(values, np.arange(1, _BINS) / _BINS))


def _positions_by(codes: np.ndarray) -> list[np.ndarray]:
    """The positions of equal ``codes`` (n,), in ascending order; groups in the order of the codes."""
    order = np.argsort(codes, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(codes[order])) + 1)


def at_most(rows: pd.DataFrame, size: int) -> pd.DataFrame:
    """``rows``, or if there are more than ``size``, a sample of ``size``, the same in every call."""
    return rows if len(rows) <= size else rows.sample(size, random_state=0).reset_index(drop=True)


def stratified(labels: pd.Series, size: int, seed: int) -> np.ndarray:
    """``size`` row positions in file order, with every class (or fifth of the score range) in proportion.

    Shares are rounded by largest remainder, so they add up to ``size`` exactly.
    """
    of_row = strata(labels)
    names, counts = np.unique(of_row, return_counts=True)
    take = _rounded(counts * size / counts.sum(), size)
    generator = np.random.default_rng(seed)
    chosen = [
        generator.permutation(np.flatnonzero(of_row == name))[:count] for name, count in zip(names, take, strict=True)
    ]
    return np.sort(np.concatenate(chosen))


def _rounded(numbers: np.ndarray, total: int) -> np.ndarray:
    """``numbers`` (n,), which add up to ``total``, as whole numbers that do so, by largest remainder."""
    whole = np.floor(numbers).astype(int)
    whole[np.argsort(whole - numbers, kind="stable")[: total - whole.sum()]] += 1
    return whole
