"""The linear probe: what it can read, and that it is not fooled by what it has seen."""

import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge, RidgeCV
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.preprocessing import StandardScaler

from pipeline.stats.probe import LEAST_ROWS, explained_rows, most_explaining, outputs_from_words, solve

RNG = np.random.default_rng(0)
VECTORS = RNG.normal(size=(400, 32))
DIRECTION = RNG.normal(size=32)


def explained(vectors: np.ndarray, labels: np.ndarray, classes: int | None) -> float:
    return float(explained_rows(vectors, labels, classes).mean())


def labels(classes: int | None, vectors: np.ndarray) -> np.ndarray:
    strength = vectors @ DIRECTION
    return strength if classes is None else (strength > 0).astype(int)


@pytest.mark.parametrize(("classes", "share"), [(2, 0.5), (None, 0.99)])
def test_what_is_linear_is_read(classes: int | None, share: float) -> None:
    assert explained(VECTORS, labels(classes, VECTORS), classes) > share


@pytest.mark.parametrize("classes", [2, None])
def test_few_rows_and_labels_of_one_kind_are_no_error(classes: int | None) -> None:
    assert explained(VECTORS[:LEAST_ROWS], np.zeros(LEAST_ROWS), classes) == 0


@pytest.mark.parametrize(("gain", "best"), [(0.1, "good"), (0.001, None)])
def test_only_what_is_shown_to_explain_more_than_the_bare_backbone_is_chosen(gain: float, best: str | None) -> None:
    bare = RNG.normal(size=300)
    probes = {"poor": bare - 0.1, "good": bare + gain + 0.1 * RNG.normal(size=300)}
    assert most_explaining(probes, bare) == best
    assert most_explaining(probes, bare, tested=False) == "good"
    assert most_explaining({"poor": bare - 0.1}, bare, tested=False) is None


@pytest.mark.parametrize("classes", [2, None])
def test_the_explained_variance_is_that_of_rows_left_out_one_by_one(classes: int | None) -> None:
    vectors = StandardScaler().fit_transform(RNG.normal(size=(40, 12)))
    strength = vectors[:, 0] + RNG.normal(size=40)
    wanted = strength if classes is None else (strength > 0).astype(int)
    targets = wanted[:, None] if classes is None else np.eye(2)[wanted]
    errors = []
    for alpha in np.logspace(0, 5, 6):
        model = Ridge(alpha=alpha)
        rest = [np.arange(40) != row for row in range(40)]
        predictions = [model.fit(vectors[kept], targets[kept]).predict(vectors[~kept])[0] for kept in rest]
        errors.append(((targets - np.reshape(predictions, targets.shape)) ** 2).sum(axis=1))
    best, variance = min(errors, key=np.sum), ((targets - targets.mean(axis=0)) ** 2).sum()
    assert explained(vectors, wanted, classes) == pytest.approx(1 - best.sum() / variance)
    # The penalty is that of the probe, not one for each row.
    assert explained_rows(vectors, wanted, classes) == pytest.approx(1 - 40 * best / variance)


@pytest.mark.parametrize(
    ("gain", "noise", "family", "more"),
    [
        (0.1, 0.1, 1, True),
        (0.03, 0.1, 1, True),
        (0.03, 0.1, 20, False),
        (0.1, 3.0, 1, False),
        (-0.1, 0.1, 1, False),
        *((gain, 0.0, 3, gain > 0) for gain in (0.1, 0.0, -0.1)),
    ],  # rows that differ by the same need no test
)
def test_more_is_explained_only_where_rows_agree(gain: float, noise: float, family: int, more: bool) -> None:
    reference = np.random.default_rng(0).normal(size=50)
    rows = reference + gain + noise * np.random.default_rng(1).normal(size=50)
    assert most_explaining({str(worse): rows - worse for worse in range(family)}, reference) == ("0" if more else None)


@pytest.mark.parametrize("classes", [2, 3])
def test_a_solved_probe_is_logistic_regression_on_standardised_vectors(classes: int) -> None:
    wanted = np.digitize(VECTORS @ DIRECTION + RNG.normal(size=400), [0.0, 3.0][: classes - 1])
    weight, bias = solve(VECTORS * 5 + 3, wanted, classes)
    scaled = StandardScaler().fit_transform(VECTORS)
    alike = [
        LogisticRegression(C=strength, max_iter=2000).fit(scaled, wanted).predict_proba(scaled)
        for strength in np.logspace(-5, 0, 6)
    ]
    outputs = (VECTORS * 5 + 3) @ weight.T + bias
    ours = np.exp(outputs) / np.exp(outputs).sum(axis=1, keepdims=True)
    assert min(np.abs(ours - theirs).max() for theirs in alike) < 1e-3
    assert (ours.argmax(axis=1) == wanted).mean() > 0.7


def test_a_class_without_rows_is_never_predicted_and_one_row_is_enough() -> None:
    wanted = np.where(VECTORS[:, 0] > 0, 3, 1)
    wanted[0] = 0
    for rows in (slice(None), slice(1, 2)):
        weight, bias = solve(VECTORS[rows], wanted[rows], 5)
        assert {*(VECTORS @ weight.T + bias).argmax(axis=1)} <= {*wanted[rows]}


def test_balanced_classes_count_equally() -> None:
    wanted = (VECTORS[:, 0] + RNG.normal(size=400) > 1.8).astype(int)
    recalls = []
    for balanced in (False, True):
        weight, bias = solve(VECTORS, wanted, 2, balanced)
        recalls.append((VECTORS @ weight.T + bias).argmax(axis=1)[wanted == 1].mean())
    assert recalls[0] + 0.1 < recalls[1]


def test_a_score_is_solved_by_ridge_regression() -> None:
    weight, bias = solve(VECTORS, 2 + VECTORS @ DIRECTION, None)
    np.testing.assert_allclose(VECTORS @ weight[0] + bias[0], 2 + VECTORS @ DIRECTION, atol=0.5)
    assert weight.shape == (1, 32)


@pytest.mark.parametrize("classes", [3, None])
def test_words_predict_as_scikit_learn_does(classes: int | None) -> None:
    words = np.array(["good", "bad", "plain", "film", "meal", "room", "very", "not"])
    texts = [" ".join(RNG.choice(words, 6)) for _ in range(90)]
    wanted = np.array([(text.count("good") - text.count("bad")) for text in texts])
    wanted = wanted if classes is None else np.clip(wanted, -1, 1) + 1
    vectors = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    known, new = vectors.fit_transform(texts[:60]), vectors.transform(texts[60:])
    if classes is None:
        expected = RidgeCV(np.logspace(-2, 2, 5)).fit(known, wanted[:60]).predict(new)
    else:
        folds = StratifiedKFold(5, shuffle=True, random_state=0)
        search = {"C": np.logspace(-1, 3, 5)}
        model = GridSearchCV(LogisticRegression(max_iter=2000), search, scoring="neg_log_loss", cv=folds)
        expected = model.fit(known, wanted[:60]).predict(new)
    outputs = outputs_from_words(texts[:60], wanted[:60], texts[60:], classes)
    assert (outputs if classes is None else outputs.argmax(axis=1)) == pytest.approx(expected)
    with pytest.raises(ValueError, match="empty vocabulary"):
        outputs_from_words(["!", "?"], np.array([0, 1]), texts, classes)
