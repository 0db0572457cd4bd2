"""Linear probes: how well a linear model reads a task off sentence vectors, a cheap guess at what transfers to it.

:func:`solve` fits the one that answers for a task; the others only rank what a task could start from.

Ranking intermediate tasks by such proxies over frozen encoders comes close to training on each in turn (Poth, Pfeiffer,
Rücklé, Gurevych 2021, "What to pre-train on? Efficient intermediate task selection").
"""

from collections.abc import Mapping

import numpy as np
from scipy.stats import ttest_1samp
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.preprocessing import StandardScaler

LEAST_ROWS = 20  # fewest rows worth probing
_ALPHAS = np.logspace(0, 5, 6)
_STRENGTHS = np.logspace(-5, 0, 6)  # C of logistic regression on standardised vectors
_NEVER = 1e4
"""How far below all others the output of a class without training rows is."""


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


def solve(
    vectors: np.ndarray, labels: np.ndarray, classes: int | None, balanced: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Weights (outputs, width) and biases (outputs,) of logistic regression on ``vectors``, of scores ridge regression.

    The strength of the penalty is chosen by cross-validation among ``vectors``: five stratified folds and the log loss;
    of scores each row alone. A class without a row is never predicted.

    Args:
        vectors: (rows, width).
        labels: (rows,), numbers of classes or scores.
        classes: how many there are; None: labels are scores, and there is one output.
        balanced: all classes count equally, whatever their number of rows.
    """
    scaler = StandardScaler()
    scaled = scaler.fit_transform(vectors.astype(np.float64))
    if classes is None:
        ridge = RidgeCV(_ALPHAS).fit(scaled, labels.astype(float))
        weight, bias = ridge.coef_[None], np.array([ridge.intercept_])
    else:
        weight, bias = _logistic(scaled, labels.astype(int), classes, balanced)
    weight = weight / scaler.scale_
    return weight, bias - weight @ scaler.mean_


def _logistic(scaled: np.ndarray, labels: np.ndarray, classes: int, balanced: bool) -> tuple[np.ndarray, np.ndarray]:
    present, counts = np.unique(labels, return_counts=True)
    weight, bias = np.zeros((classes, scaled.shape[1])), np.full(classes, -_NEVER)
    if len(present) == 1:
        bias[present] = 0
        return weight, bias
    model = LogisticRegression(max_iter=2000, class_weight="balanced" if balanced else None)
    folds = min(5, counts.min())
    if folds > 1:
        splits = StratifiedKFold(folds, shuffle=True, random_state=0)
        search = GridSearchCV(model, {"C": _STRENGTHS}, scoring="neg_log_loss", cv=splits)
        model = search.fit(scaled, labels).best_estimator_
    else:  # a class with one row cannot be held out
        model = model.set_params(C=_STRENGTHS[len(_STRENGTHS) // 2]).fit(scaled, labels)
    if len(present) == 2:  # one decision stands for both
        weight[present], bias[present] = [0 * model.coef_[0], model.coef_[0]], [0, model.intercept_[0]]
    else:
        weight[present], bias[present] = model.coef_, model.intercept_
    return weight, bias
