"""Cut labelled rows in two: one part selects, the other scores."""

import hashlib

import numpy as np
import pandas as pd
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from pipeline.data.overlap import text_key
from pipeline.data.strata import positions_by, strata
from pipeline.system.errors import PipelineError

_LOPSIDED = 0.5
"""A part has at least this share of its intended size."""


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
