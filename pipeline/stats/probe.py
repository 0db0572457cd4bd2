"""Linear probes: how well a linear model predicts a task from sentence vectors, a cheap estimate of what transfers.

:func:`solve` fits a probe that answers a task; the others only rank what a task could start from.

Ranking intermediate tasks by such proxies over frozen encoders comes close to training on each in turn (Poth, Pfeiffer,
Rücklé, Gurevych 2021, "What to pre-train on? Efficient intermediate task selection").
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.stats import ttest_1samp
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.preprocessing import StandardScaler

from pipeline.data.labels import are_sets, as_matrix, one_hot

LEAST_ROWS = 20  # fewest rows worth probing
_ALPHAS = np.logspace(0, 5, 6)
_STRENGTHS = np.logspace(-5, 0, 6)  # C of logistic regression on standardised vectors
_WORD_ALPHAS, _WORD_STRENGTHS = np.logspace(-2, 2, 5), np.logspace(-1, 3, 5)  # for TF-IDF vectors, whose length is 1
_NEVER = 1e4
"""How far the output of a class without training rows lies below all others."""


def explained_rows(vectors: np.ndarray, labels: np.ndarray, classes: int | None) -> np.ndarray:
    """The share (rows,) of the labels' variance that ridge regression on ``vectors`` explains, by row.

    Each row is predicted by the fit on all others, in closed form, with the penalty that does best at this. The mean
    over rows is at most 1, and below 0 if the mean of the other labels would predict better. Unlike accuracy, it
    distinguishes probes that all vote for the largest class.

    Args:
        vectors: (rows, width).
        labels: (rows,), class numbers, label sets or scores; at least ``LEAST_ROWS``.
        classes: number of classes, regressed one-hot; None: labels are scores.
    """
    targets = labels.astype(float)[:, None] if classes is None else one_hot(labels, classes).astype(float)
    centred = targets - targets.mean(axis=0)
    variance = (centred**2).sum()
    if not variance:  # equal labels leave nothing to explain
        return np.zeros(len(labels))
    scaled = StandardScaler().fit_transform(vectors.astype(np.float64))
    ridge = RidgeCV(_ALPHAS, store_cv_results=True).fit(scaled, centred)
    errors = ridge.cv_results_.reshape(len(labels), -1, len(_ALPHAS)).sum(axis=1)
    error = errors[:, errors.sum(axis=0).argmin()]
    return 1.0 - error * len(labels) / variance


def most_explaining(probes: Mapping[str, np.ndarray], reference: np.ndarray, tested: bool = True) -> str | None:
    """The name of the probe that explains most, if it explains more than ``reference``; else None.

    If ``tested``, it must explain significantly more, by a paired t-test at 0.05. The probes form one family of
    comparisons (Bonferroni); all values come from :func:`explained_rows`.
    """
    best = max(probes, key=lambda name: probes[name].mean())
    difference = probes[best] - reference
    if not tested:
        is_more = probes[best].mean() > reference.mean()
    elif np.ptp(difference) <= 1e-9 * abs(difference.mean()):  # the same for every row: nothing to test against
        is_more = difference.mean() > 0
    else:
        is_more = ttest_1samp(difference, 0.0, alternative="greater").pvalue < 0.05 / len(probes)
    return best if is_more else None


def solve(
    vectors: np.ndarray, labels: np.ndarray, classes: int | None, balanced: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Weights (outputs, width) and biases (outputs,) of logistic (for scores: ridge) regression on ``vectors``.

    Cross-validation selects the penalty: five stratified folds with log loss for classes, leave-one-out for scores. A
    class without rows is never predicted.

    Args:
        vectors: (rows, width).
        labels: (rows,), class numbers, scores, or label sets, whose classes are each told from the rest.
        classes: number of classes; None: labels are scores, and there is one output.
        balanced: all classes count equally, whatever their number of rows.
    """
    scaler = StandardScaler()
    scaled = scaler.fit_transform(vectors.astype(np.float64))
    if classes is None:
        ridge = RidgeCV(_ALPHAS).fit(scaled, labels.astype(float))
        weight, bias = ridge.coef_[None], np.array([ridge.intercept_])
    else:
        weight, bias = _logistic(scaled, labels, classes, balanced)
    weight = weight / scaler.scale_
    return weight, bias - weight @ scaler.mean_


def outputs_from_words(
    texts: Sequence[str], labels: np.ndarray, tested: Sequence[str], classes: int | None
) -> np.ndarray:
    """Outputs for B ``tested`` texts by regression on TF-IDF of words and pairs of words: (B, classes), or scores (B,).

    Regression and choice of the penalty are as in :func:`solve`. Raises ValueError if no text has a word.
    """
    vectors = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    known, new = vectors.fit_transform(texts), vectors.transform(tested)
    if classes is None:
        return RidgeCV(_WORD_ALPHAS).fit(known, labels).predict(new)
    weight, bias = _logistic(known, labels, classes, False, _WORD_STRENGTHS)
    return new @ weight.T + bias


def _logistic(
    scaled: Any, labels: np.ndarray, classes: int, balanced: bool, strengths: np.ndarray = _STRENGTHS
) -> tuple[np.ndarray, np.ndarray]:
    if are_sets(labels):
        pairs = [_logistic(scaled, held.astype(int), 2, balanced, strengths) for held in as_matrix(labels).T]
        return np.array([w[1] - w[0] for w, _ in pairs]), np.array([b[1] - b[0] for _, b in pairs])
    present, counts = np.unique(labels.astype(int), return_counts=True)
    weight, bias = np.zeros((classes, scaled.shape[1])), np.full(classes, -_NEVER)
    if len(present) == 1:
        bias[present] = 0
        return weight, bias
    model = LogisticRegression(max_iter=2000, class_weight="balanced" if balanced else None)
    folds = min(5, counts.min())
    if folds > 1:
        splits = StratifiedKFold(folds, shuffle=True, random_state=0)
        search = GridSearchCV(model, {"C": strengths}, scoring="neg_log_loss", cv=splits)
        model = search.fit(scaled, labels).best_estimator_
    else:  # a class with one row cannot be held out
        model = model.set_params(C=strengths[len(strengths) // 2]).fit(scaled, labels)
    if len(present) == 2:  # one decision stands for both
        weight[present], bias[present] = [0 * model.coef_[0], model.coef_[0]], [0, model.intercept_[0]]
    else:
        weight[present], bias[present] = model.coef_, model.intercept_
    return weight, bias
