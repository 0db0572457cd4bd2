"""Groups of rows that every part of a split or sample holds in proportion."""

import numpy as np
import pandas as pd

_BINS = 5


def strata(labels: pd.Series) -> np.ndarray:
    """The stratum of every row (n,): its class, or the fifth of the scores that it falls in."""
    values = labels.to_numpy()
    if values.dtype.kind != "f":
        return values
    return np.digitize(values, np.quantile(values, np.arange(1, _BINS) / _BINS))


def positions_by(codes: np.ndarray) -> list[np.ndarray]:
    """The positions of equal ``codes`` (n,), in ascending order; groups in the order of the codes."""
    order = np.argsort(codes, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(codes[order])) + 1)
