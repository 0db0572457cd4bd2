"""Paired tests see real differences and seldom see any where none is; intervals hold the truth as often as they say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import stats

from pipeline.metrics import Metric, score
from pipeline.paired import Comparison, holm, mean_difference, resample_paired

NO_DIFFERENCE = "no difference seen"

Systems = tuple[np.ndarray, np.ndarray, np.ndarray]


def compare_paired(*systems: Any, **settings: Any) -> Comparison:
    return resample_paired(*systems, **settings).comparison()


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
        comparison = compare_paired(metric, list(ours), list(theirs), labels, resamples=49, draws=1, seed=trial)
        found += comparison.verdict() != NO_DIFFERENCE
    assert found <= 14


def test_the_test_is_the_same_for_the_same_seed_and_never_gives_p_0() -> None:
    labels = np.zeros(300)
    first = compare_paired("accuracy", [labels], [labels + 1], labels, resamples=99)
    assert first == compare_paired("accuracy", [labels], [labels + 1], labels, resamples=99)
    assert (first.difference, first.p_value) == (1, 0.01)


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


# Confidence intervals.


@pytest.mark.parametrize("metric", SYSTEMS)
def test_the_interval_holds_the_difference_and_turns_with_the_systems(metric: Metric) -> None:
    ours, theirs, labels = SYSTEMS[metric](np.random.default_rng(2), seeds=3)
    there = compare_paired(metric, list(ours), list(theirs), labels)
    back = compare_paired(metric, list(theirs), list(ours), labels)
    assert there.interval is not None
    assert back.interval is not None
    assert there.interval[0] < there.difference < there.interval[1]
    assert back.interval == pytest.approx((-there.interval[1], -there.interval[0]), abs=0.01)


@pytest.mark.parametrize("metric", SYSTEMS)
def test_identical_systems_differ_by_nothing_at_all(metric: Metric) -> None:
    ours, _, labels = SYSTEMS[metric](np.random.default_rng(0), seeds=2)
    assert compare_paired(metric, list(ours), list(ours), labels).interval == (0, 0)


@pytest.mark.parametrize("metric", SYSTEMS)
def test_95_percent_intervals_hold_the_true_difference_about_95_times_in_100(metric: Metric) -> None:
    """Systems of one quality: the true difference is 0. Of 200, 190 are expected; chance alone leaves 184 to 196."""
    held = 0
    for trial in range(200):
        ours, theirs, labels = SYSTEMS[metric](np.random.default_rng(trial), rows=200)
        interval = compare_paired(metric, list(ours), list(theirs), labels, resamples=1, draws=400, seed=trial).interval
        assert interval is not None
        held += interval[0] <= 0 <= interval[1]
    assert 182 <= held <= 199


def test_the_interval_of_an_accuracy_is_as_wide_as_theory_says() -> None:
    """The gain of an example is +1, -1 or 0, so the standard error is that of a mean of such numbers."""
    labels = np.zeros(2000)
    ours, theirs = labels.copy(), labels.copy()
    ours[:200], theirs[150:450] = 1, 1
    gain = (theirs != 0).astype(float) - (ours != 0)
    error = gain.std() / np.sqrt(len(labels))
    interval = compare_paired("accuracy", [ours], [theirs], labels).interval
    assert interval == pytest.approx((gain.mean() - 1.96 * error, gain.mean() + 1.96 * error), abs=2e-3)


@pytest.mark.parametrize("seeds", [1, 3])
def test_resampled_correlations_are_those_of_the_resampled_rows(seeds: int) -> None:
    """Sums give the same r as correlating row by row does, for one known swap and one known draw."""
    from pipeline import paired

    ours, theirs, labels = regressors(np.random.default_rng(3), rows=40, seeds=seeds)
    ours, theirs, target = (paired._standardised(x.astype(float)) for x in (ours, theirs, labels))

    def mean_r(x: np.ndarray, t: np.ndarray) -> float:
        return float(np.mean([np.corrcoef(row, t)[0, 1] for row in x]))

    swap = np.random.default_rng(5).integers(0, 2, (7, 40), dtype=np.uint8).astype(bool)
    expected = [mean_r(np.where(s, theirs, ours), target) - mean_r(np.where(s, ours, theirs), target) for s in swap]
    assert paired._pearson_swaps(ours, theirs, target, 7, np.random.default_rng(5)) == pytest.approx(expected)
    rows = np.random.default_rng(5).integers(0, 40, (7, 40))
    expected = [mean_r(ours[:, r], target[r]) - mean_r(theirs[:, r], target[r]) for r in rows]
    assert paired._pearson_draws(ours, theirs, target, 7, np.random.default_rng(5)) == pytest.approx(expected)


@pytest.mark.parametrize(("ours", "theirs"), [(30, 10), (10, 30), (12, 10), (5, 0)])
def test_for_one_seed_the_test_of_accuracy_is_mcnemars(ours: int, theirs: int) -> None:
    """Right where the other is wrong on ``ours`` and on ``theirs`` examples: the exact binomial test of those."""
    labels = np.zeros(200)
    system, reference = labels.copy(), labels.copy()
    reference[:ours] = 1
    system[100 : 100 + theirs] = 1
    exact = stats.binomtest(ours, ours + theirs).pvalue
    found = compare_paired("accuracy", [system], [reference], labels, resamples=50_000).p_value
    assert found == pytest.approx(exact, rel=0.1, abs=1e-3)


def test_the_mean_over_tasks_has_the_mean_difference_and_a_narrower_interval() -> None:
    parts = []
    for task, metric in enumerate(SYSTEMS):
        ours, theirs, labels = SYSTEMS[metric](np.random.default_rng(task), seeds=2)
        parts.append(resample_paired(metric, list(ours), list(theirs), labels, seed=task))
    mean = mean_difference(parts).comparison()
    assert mean.difference == pytest.approx(np.mean([part.difference for part in parts]))
    widths = [np.ptp(comparison.interval or (0, 0)) for comparison in (*(p.comparison() for p in parts), mean)]
    assert widths[-1] < np.mean(widths[:-1])
    same = mean_difference([parts[0], parts[0]]).comparison()
    assert same == parts[0].comparison()
