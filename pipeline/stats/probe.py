"""Linear probes: how well a linear model reads a task off sentence vectors, a cheap guess at what transfers to it.

Ranking intermediate tasks by such proxies over frozen encoders comes close to training on each in turn (Poth, Pfeiffer,
Rücklé, Gurevych 2021, "What to pre-train on? Efficient intermediate task selection").
"""

from collections.abc import Mapping

import numpy as np
from scipy.stats import ttest_1samp
from sklearn.linear_model import RidgeCV
from sklearn.preprocessing import StandardScaler

LEAST_ROWS = 20  # fewest rows worth probing
_ALPHAS = np.logspace(0, 5, 6)


def explained_rows(vectors: np.ndarray, labels: np.ndarray, classes: int | None) -> np.ndarray:
    """By row, (rows,), the share of the labels' variance that ridge regression on ``vectors`` explains.

    Each row is predicted by the fit on all others, in closed form; the penalty is the one that does best so. The mean
    over rows is at most 1; it is below 0 where the mean of the other labels would predict better. Unlike accuracy it
    tells probes apart that all vote for the largest class.

    Args:
        vectors: (rows, width).
        labels: (rows,), numbers of classes or scores; at least ``LEAST_ROWS``.
        classes: how many there are, which are regressed one-hot; None: labels are scores.
    """
    targets = labels.astype(float)[:, None] if classes is None else np.eye(classes)[labels.astype(int)]
    centred = targets - targets.mean(axis=0)
    variance = (centred**2).sum()
    if not variance:  # equal labels leave nothing to explain
        return np.zeros(len(labels))
    scaled = StandardScaler().fit_transform(vectors.astype(np.float64))
    ridge = RidgeCV(_ALPHAS, store_cv_results=True).fit(scaled, centred)
    errors = ridge.cv_results_.reshape(len(labels), -1, len(_ALPHAS)).sum(axis=1)
    error = errors[:, errors.sum(axis=0).argmin()]
    return 1.0 - error * len(labels) / variance


def most_explaining(probes: Mapping[str, np.ndarray], reference: np.ndarray) -> str | None:
    """The name of the probe that explains most, if it explains significantly more than ``reference``; else None.

    The probes are one family of comparisons; all are as :func:`explained_rows` gives them.
    """
    best = max(probes, key=lambda name: probes[name].mean())
    return best if explains_more(probes[best], reference, len(probes)) else None


def explains_more(rows: np.ndarray, reference: np.ndarray, family: int = 1) -> bool:
    """Whether one probe explains significantly more than another of the same rows, by a paired t test at 0.05.

    Args:
        rows, reference: as :func:`explained_rows` gives them.
        family: comparisons of which this is the best (Bonferroni).
    """
    difference = rows - reference
    if np.ptp(difference) <= 1e-9 * abs(difference.mean()):  # the same for every row: nothing to test against
        return bool(difference.mean() > 0)
    return bool(ttest_1samp(difference, 0.0, alternative="greater").pvalue < 0.05 / family)
