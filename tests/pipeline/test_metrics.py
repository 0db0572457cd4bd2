"""Scores agree with scikit-learn and SciPy; paired tests see real differences and seldom see any where none is."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import accuracy_score

from pipeline.metrics import Comparison, Metric, compare_paired, holm, load_metric, overall, pearson, score

NO_DIFFERENCE = "no difference seen"


@pytest.mark.parametrize("seed", range(5))
def test_scores_agree_with_sklearn_and_scipy(seed: int) -> None:
    generator = np.random.default_rng(seed)
    classes, predicted = generator.integers(0, 5, (2, 301))
    assert score("accuracy", predicted, classes) == accuracy_score(classes, predicted)
    scores = generator.normal(2.5, 1, 301)
    guessed = scores + generator.normal(0, 2, 301)
    assert score("pearson", guessed, scores) == pytest.approx(stats.pearsonr(guessed, scores).statistic, abs=1e-12)


def test_pearson_is_over_the_whole_split_and_not_a_mean_over_batches() -> None:
    generator = np.random.default_rng(0)
    labels, predictions = generator.normal(size=(2, 64))
    batches = [pearson(predictions[i : i + 8], labels[i : i + 8]) for i in range(0, 64, 8)]
    assert score("pearson", predictions, labels) != pytest.approx(np.mean(batches), abs=1e-3)


def test_pearson_reads_scores_unclipped() -> None:
    labels = np.array([0.0, 5.0, 2.0, 3.0])
    predictions = np.array([-3.0, 9.0, 2.0, 3.0])
    assert pearson(predictions, labels) != pytest.approx(pearson(predictions.clip(0, 5), labels), abs=1e-3)


@pytest.mark.parametrize("constant", [0.0, 0.1, 3.0, -1e9])
def test_predictions_that_never_change_have_correlation_0(constant: float) -> None:
    varied = np.linspace(0, 5, 101)
    assert score("pearson", np.full(101, constant), varied) == 0
    assert score("pearson", varied, np.full(101, constant)) == 0


@pytest.mark.parametrize("metric", ["accuracy", "pearson"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_predictions_that_are_not_finite_are_never_scored(metric: Metric, bad: float) -> None:
    with pytest.raises(ValueError, match="NaN or infinity"):
        score(metric, np.array([1.0, bad]), np.array([1.0, 0.0]))


@pytest.mark.parametrize("dtype", ["float32", "int64", "float64"])
def test_whole_classes_are_compared_whatever_their_dtype(dtype: str) -> None:
    assert score("accuracy", np.array([0, 1, 2, 2], dtype=dtype), np.array([0, 1, 1, 2])) == 0.75


def test_the_metrics_are_evaluate_metrics() -> None:
    import evaluate

    metric = load_metric("accuracy")
    assert isinstance(metric, evaluate.Metric)
    assert metric.compute(predictions=[1.0, 0.0], references=[1.0, 1.0]) == {"accuracy": 0.5}
    # Nothing of one call is left for the next.
    assert metric.compute(predictions=[1.0], references=[1.0]) == {"accuracy": 1.0}
    metric.add_batch(predictions=[1.0, 0.0], references=[1.0, 1.0])
    metric.add_batch(predictions=[1.0, 1.0], references=[1.0, 1.0])
    assert metric.compute() == {"accuracy": 0.75}


METRICS: dict[str, Metric] = {"sst": "accuracy", "quora": "accuracy", "sts": "pearson"}


def test_both_overall_scores_are_those_that_the_papers_print() -> None:
    # Xu 2024, table 2 (test) prints the normalised one, Liu & Shen 2023, table 5 (dev) the plain one.
    _, normalised = overall({"sst": 0.548, "quora": 0.735, "sts": 0.815}, METRICS)
    assert normalised == pytest.approx(0.7302, abs=5e-5)
    plain, _ = overall({"sst": 0.518, "quora": 0.831, "sts": 0.858}, METRICS)
    assert plain == pytest.approx(0.736, abs=5e-4)


def test_both_overall_scores_agree_where_nothing_is_a_correlation() -> None:
    assert overall({"sst": 0.5, "quora": 0.7}, METRICS) == pytest.approx((0.6, 0.6))
    assert overall({"sts": -1.0}, METRICS) == (-1.0, 0.0)


# Paired tests.

Systems = tuple[np.ndarray, np.ndarray, np.ndarray]


def classifiers(generator: np.random.Generator, rows: int = 100, seeds: int = 1) -> Systems:
    """Two systems, right equally often, whose errors agree more than chance: some examples are harder."""
    labels = generator.integers(0, 2, rows)
    easy = generator.random(rows)
    right = generator.random((2, seeds, rows)) < 0.4 + 0.6 * easy
    return np.where(right[0], labels, 1 - labels), np.where(right[1], labels, 1 - labels), labels


def regressors(generator: np.random.Generator, rows: int = 100, seeds: int = 1) -> Systems:
    """Two systems that correlate equally with the labels, on scales of their own."""
    labels = generator.random(rows) * 5
    shared = generator.normal(0, 1, rows)
    ours, theirs = labels + shared + generator.normal(0, 1, (2, seeds, rows))
    return 3 * ours + 7, theirs, labels


SYSTEMS: dict[Metric, Callable[..., Systems]] = {"accuracy": classifiers, "pearson": regressors}


@pytest.mark.parametrize("metric", SYSTEMS)
@pytest.mark.parametrize("seeds", [1, 3])
def test_identical_systems_have_p_1_and_no_difference_seen(metric: Metric, seeds: int) -> None:
    ours, _, labels = SYSTEMS[metric](np.random.default_rng(0), seeds=seeds)
    comparison = compare_paired(metric, list(ours), list(ours), labels, resamples=50)
    assert (comparison.difference, comparison.p_value) == (0, 1)
    assert comparison.verdict() == NO_DIFFERENCE


@pytest.mark.parametrize("metric", SYSTEMS)
def test_the_difference_is_that_of_the_mean_scores_and_turns_its_sign_with_the_systems(metric: Metric) -> None:
    ours, theirs, labels = SYSTEMS[metric](np.random.default_rng(1), seeds=3)
    comparison = compare_paired(metric, list(ours), list(theirs), labels, resamples=50)
    means = [np.mean([score(metric, run, labels) for run in runs]) for runs in (ours, theirs)]
    assert comparison.difference == pytest.approx(means[0] - means[1], abs=1e-12)
    assert compare_paired(metric, list(theirs), list(ours), labels).difference == pytest.approx(-comparison.difference)


def test_five_points_of_accuracy_on_1000_examples_are_found() -> None:
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 2, 1000)
    reference, system = labels.copy(), labels.copy()
    reference[:300] = 1 - reference[:300]
    # Right on 100 examples more and wrong on 50 others.
    system[100:350] = 1 - system[100:350]
    for ours, theirs, verdict in ((system, reference, "better"), (reference, system, "worse")):
        comparison = compare_paired("accuracy", [ours], [theirs], labels, resamples=500)
        assert abs(comparison.difference) == pytest.approx(0.05)
        assert comparison.verdict() == verdict


def test_a_better_correlation_is_found_whatever_the_scales() -> None:
    generator = np.random.default_rng(0)
    labels = generator.random(800) * 5
    good = 100 * (labels + generator.normal(0, 1.0, 800))
    poor = labels + generator.normal(0, 1.6, 800)
    assert compare_paired("pearson", [good], [poor], labels, resamples=200).verdict() == "better"
    assert compare_paired("pearson", [poor], [good], labels, resamples=200).verdict() == "worse"


@pytest.mark.parametrize("metric", SYSTEMS)
@pytest.mark.parametrize("seeds", [1, 3])
def test_of_200_pairs_of_equal_systems_few_are_called_different(metric: Metric, seeds: int) -> None:
    # At level 0.05, with 49 resamples, about 4 % are expected, and at most 7 % are allowed.
    found = 0
    for trial in range(200):
        ours, theirs, labels = SYSTEMS[metric](np.random.default_rng(trial), seeds=seeds)
        comparison = compare_paired(metric, list(ours), list(theirs), labels, resamples=49, seed=trial)
        found += comparison.verdict() != NO_DIFFERENCE
    assert found <= 14


def test_the_test_is_the_same_for_the_same_seed_and_never_gives_p_0() -> None:
    labels = np.zeros(300)
    first = compare_paired("accuracy", [labels], [labels + 1], labels, resamples=99)
    assert first == compare_paired("accuracy", [labels], [labels + 1], labels, resamples=99)
    assert first == Comparison(difference=1.0, p_value=0.01)


@pytest.mark.parametrize("constant", [0.1, 1 / 3, 1e6 + 0.1])
def test_a_system_that_always_says_the_same_is_tested_alike_whatever_it_says(constant: float) -> None:
    _, theirs, labels = regressors(np.random.default_rng(0))
    zero, other = (
        compare_paired("pearson", [np.full(100, value)], list(theirs), labels, resamples=50)
        for value in (0.0, constant)
    )
    assert other.difference == pytest.approx(zero.difference)
    assert other.p_value == zero.p_value


def test_runs_without_a_partner_are_refused() -> None:
    labels = np.array([0, 1])
    with pytest.raises(ValueError, match="paired runs needed: 1 against 2"):
        compare_paired("accuracy", [labels], [labels, labels], labels)


@pytest.mark.parametrize(
    ("difference", "p_value", "verdict"),
    [(0.1, 0.01, "better"), (-0.1, 0.01, "worse"), (0.1, 0.05, NO_DIFFERENCE), (-0.1, 0.8, NO_DIFFERENCE)],
)
def test_a_difference_has_a_direction_only_below_the_level(difference: float, p_value: float, verdict: str) -> None:
    assert Comparison(difference, p_value).verdict() == verdict


def test_holm_agrees_with_a_correction_by_hand() -> None:
    # Sorted .005 .01 .03 .04 times 4 3 2 1 is .02 .03 .06 .04; no later one may be smaller than an earlier.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([0.2]) == [0.2]
    assert holm([]) == []


@pytest.mark.parametrize("seed", range(5))
def test_holm_keeps_the_order_raises_no_p_beyond_1_and_is_no_stricter_than_bonferroni(seed: int) -> None:
    raw = np.random.default_rng(seed).random(12) ** 3
    adjusted = np.array(holm(list(raw)))
    assert (np.diff(adjusted[np.argsort(raw)]) >= 0).all()
    assert (adjusted >= raw).all()
    assert (adjusted <= np.minimum(1, raw * 12) + 1e-15).all()
