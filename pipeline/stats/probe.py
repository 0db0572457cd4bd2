"""Linear probes: how well a linear model reads a task off sentence vectors, a cheap guess at what transfers to it.

Ranking intermediate tasks by such proxies over frozen encoders comes close to training on each in turn (Poth, Pfeiffer,
Rücklé, Gurevych 2021, "What to pre-train on? Efficient intermediate task selection").
"""

from collections.abc import Mapping

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax
from scipy.stats import ttest_1samp
from sklearn.linear_model import Ridge, RidgeCV
from sklearn.model_selection import KFold, cross_val_predict
from sklearn.preprocessing import StandardScaler

LEAST = 20  # fewest rows worth probing
_ALPHAS = np.logspace(0, 5, 6)
_FOLDS = 5
_FACTORS = 0.1, 30.0


def explained_rows(vectors: np.ndarray, labels: np.ndarray, classes: int | None) -> np.ndarray:
    """By row, (rows,), the share of the labels' variance that ridge regression on ``vectors`` explains.

    Each row is predicted by the fit on all others, in closed form; the penalty is the one that does best so. The mean
    over rows is at most 1; it is below 0 where the mean of the other labels would predict better. Unlike accuracy it
    tells probes apart that all vote for the largest class.

    Args:
        vectors: (rows, width).
        labels: (rows,), numbers of classes or scores; at least ``LEAST``.
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


def probe_head(vectors: np.ndarray, labels: np.ndarray, classes: int | None) -> tuple[np.ndarray, np.ndarray]:
    """The weights (outputs, width) and bias (outputs,) of a linear head that reads ``labels`` off ``vectors``.

    For scores it is their ridge regression; the penalty is the one that predicts rows left out best. For classes it is
    that of each class's indicator, times the factor with which a softmax of held-out predictions (five folds) has the
    highest likelihood: regressed indicators alone would make all classes about equally likely.

    Args:
        vectors, labels, classes: as in :func:`explained_rows`; scores as the head is to put them out.
    """
    targets = labels.astype(float)[:, None] if classes is None else np.eye(classes)[labels.astype(int)]
    scaler = StandardScaler().fit(vectors.astype(np.float64))
    scaled = scaler.transform(vectors.astype(np.float64))
    ridge = RidgeCV(_ALPHAS).fit(scaled, targets)
    weight = np.reshape(ridge.coef_, (targets.shape[1], -1)) / scaler.scale_
    bias = np.ravel(ridge.intercept_) - weight @ scaler.mean_
    if classes is None:
        return weight, bias
    folds = KFold(_FOLDS, shuffle=True, random_state=0)
    held_out = cross_val_predict(Ridge(ridge.alpha_), scaled, targets, cv=folds)

    def unlikeliness(log_factor: float) -> float:
        return -float(log_softmax(np.exp(log_factor) * held_out, axis=1)[targets > 0].mean())

    factor = np.exp(minimize_scalar(unlikeliness, bounds=np.log(_FACTORS), method="bounded").x)
    return factor * weight, factor * bias


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
