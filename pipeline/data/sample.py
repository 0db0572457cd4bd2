"""Draw a sample where all rows are too many, in proportion to the groups of rows that every part should hold."""

import numpy as np
import pandas as pd

from pipeline.data.label_sets import are_sets, as_matrix

_BINS = 5


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


def positions_by(codes: np.ndarray) -> list[np.ndarray]:
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
    exact = counts * size / counts.sum()
    take = np.floor(exact).astype(int)
    for position in np.argsort(take - exact, kind="stable")[: size - take.sum()]:
        take[position] += 1
    generator = np.random.default_rng(seed)
    chosen = [
        generator.permutation(np.flatnonzero(of_row == name))[:count] for name, count in zip(names, take, strict=True)
    ]
    return np.sort(np.concatenate(chosen))
