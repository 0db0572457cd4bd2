"""Verdict and interval are one reading: seldom wrong where there is no difference, and right as often as they say."""

import re
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from pipeline.reporting.text import comparison_text
from pipeline.stats.metrics import Metric, _standardised, score
from pipeline.stats.paired import LEVEL, Comparison, Resampled, mean_difference, resample_paired

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
def test_identical_systems_do_not_differ(metric: Metric, seeds: int) -> None:
    ours, _, labels = SYSTEMS[metric](np.random.default_rng(0), seeds=seeds)
    comparison = compare_paired(metric, list(ours), list(ours), labels, resamples=50)
    assert comparison == Comparison(0, 1, (0, 0))
    assert comparison.verdict == "not significant"


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
        assert comparison.verdict == verdict


def test_a_better_correlation_is_found_whatever_the_scales() -> None:
    generator = np.random.default_rng(0)
    labels = generator.random(800) * 5
    good = 100 * (labels + generator.normal(0, 1.0, 800))
    poor = labels + generator.normal(0, 1.6, 800)
    assert compare_paired("pearson", [good], [poor], labels, resamples=200).verdict == "better"
    assert compare_paired("pearson", [poor], [good], labels, resamples=200).verdict == "worse"


@pytest.mark.parametrize("metric", SYSTEMS)
@pytest.mark.parametrize("seeds", [1, 3])
def test_of_200_pairs_of_equal_systems_few_are_called_different(metric: Metric, seeds: int) -> None:
    # At level 0.05, with 49 resamples, about 4 % are expected, and at most 7 % are allowed.
    found = 0
    for trial in range(200):
        ours, theirs, labels = SYSTEMS[metric](np.random.default_rng(trial), seeds=seeds)
        comparison = compare_paired(metric, list(ours), list(theirs), labels, resamples=49, seed=trial)
        found += comparison.significant
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


# One reading.

NUMBER = r"([+-]?[\d.]+(?:e-\d+)?)"


def drawn_systems(metric: Metric, shape: str, rows: int, seeds: int, generator: np.random.Generator) -> Systems:
    labels = generator.integers(0, 2, rows) if metric == "accuracy" else generator.random(rows) * 5
    ours, theirs = (np.where(generator.random((seeds, rows)) < share, labels, 1 - labels) for share in (0.9, 0.5))
    if shape == "alike":
        theirs = ours
    elif shape == "constant":
        ours = np.full((seeds, rows), 0.1)
    elif shape == "opposite":
        ours, theirs = np.tile(labels, (seeds, 1)), np.tile(1 - labels, (seeds, 1))
    elif shape == "one label":
        labels = np.full(rows, labels[0])
    return ours, theirs, labels


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    parts=st.lists(
        st.tuples(
            st.sampled_from(list(SYSTEMS)),
            st.sampled_from(["drawn", "alike", "constant", "opposite", "one label"]),
            st.sampled_from([1, 2, 5, 30, 150]),
        ),
        min_size=1,
        max_size=3,
    ),
    seeds=st.integers(1, 3),
    family=st.sampled_from([1, 2, 12, 90, 5000]),
    resamples=st.sampled_from([19, 99, 999]),
    seed=st.integers(0, 2**16),
)
def test_verdict_interval_and_p_agree(parts: Any, seeds: int, family: int, resamples: int, seed: int) -> None:
    """On one task or the mean over several, with ties, one example or all alike, in numbers and as they are printed."""
    generator = np.random.default_rng(seed)
    resampled = []
    for task, (metric, shape, rows) in enumerate(parts):
        ours, theirs, labels = drawn_systems(metric, shape, rows, seeds, generator)
        resampled.append(resample_paired(metric, list(ours), list(theirs), labels, resamples=resamples, seed=task))
    mean = mean_difference(resampled) if len(parts) > 1 else resampled[0]
    comparison = mean.comparison(family)
    low, high = comparison.interval
    assert low <= comparison.difference <= high
    assert comparison.significant == (low > 0 or high < 0) == (comparison.p_value < LEVEL)
    expected = "not significant" if low <= 0 <= high else "better" if comparison.difference > 0 else "worse"
    assert comparison.verdict == expected
    reached = np.sum(np.abs(mean.null) >= abs(mean.difference) - 1e-9)
    assert comparison.p_value == pytest.approx(min(1, family * (reached + 1) / (resamples + 1)))

    printed = re.search(f"CI {NUMBER} to {NUMBER}, p ([<=]) {NUMBER}", comparison_text(comparison, "it"))
    assert printed
    low_text, high_text, relation, p_text = printed.groups()
    assert comparison.significant == (float(low_text) > 0 or float(high_text) < 0)
    assert comparison.significant == (float(p_text) < LEVEL or (relation, float(p_text)) == ("<", LEVEL))


@settings(max_examples=100, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**16), few=st.integers(1, 500), more=st.integers(1, 500))
def test_more_comparisons_widen_the_interval_and_raise_p(seed: int, few: int, more: int) -> None:
    generator = np.random.default_rng(seed)
    resampled = Resampled(generator.uniform(-1, 1), generator.uniform(-1, 1, 999))
    one, other = (resampled.comparison(family) for family in sorted((few, more)))
    assert one.p_value <= other.p_value
    assert other.interval[0] <= one.interval[0] <= one.interval[1] <= other.interval[1]


def test_the_interval_ends_where_the_exact_test_does() -> None:
    """All 2^14 swaps of 14 examples: what fewer than 5 % of them reach is beyond the margin."""
    gain = np.array([1.0] * 11 + [-1.0] * 3)
    swapped = np.array([np.dot(signs, gain) for signs in product((-1, 1), repeat=14)]) / 14
    labels = np.zeros(14)
    comparison = compare_paired("accuracy", [(gain < 0) * 1.0], [(gain > 0) * 1.0], labels, resamples=50_000)
    reaching = [size for size in np.unique(np.abs(swapped)) if np.mean(np.abs(swapped) >= size - 1e-9) < LEVEL]
    margin = comparison.difference - comparison.interval[0]
    assert min(reaching) - 2 / 14 == pytest.approx(margin)


@pytest.mark.parametrize("p_value", [0.04999, 0.05, 0.0504])
def test_a_printed_p_stands_on_its_side_of_the_level(p_value: float) -> None:
    text = comparison_text(Comparison(0.1, p_value, (0.0, 0.2)), "it")
    assert text.endswith("p < 0.050" if p_value < LEVEL else "p = 0.050")


def test_the_reference_against_the_system_is_the_other_way_round() -> None:
    ours, theirs, labels = regressors(np.random.default_rng(2))
    there = compare_paired("pearson", list(ours), list(theirs), labels)
    assert there.reversed() == Comparison(-there.difference, there.p_value, (-there.interval[1], -there.interval[0]))
    back = compare_paired("pearson", list(theirs), list(ours), labels)
    assert back.interval == pytest.approx(there.reversed().interval, abs=0.01)


# How often it is right.


def of_quality(metric: Metric, qualities: list[float], generator: np.random.Generator, seeds: int) -> list[Any]:
    """Labels of 100 examples, then each system's predictions and true score; all find the same examples easy."""
    if metric == "accuracy":
        labels, easy = generator.integers(0, 2, 100), generator.uniform(-0.3, 0.3, 100)
        right = [generator.random((seeds, 100)) < quality + easy for quality in qualities]
        return [labels, *((np.where(r, labels, 1 - labels), q) for r, q in zip(right, qualities, strict=True))]
    labels, shared = generator.normal(size=(2, 100))
    noise = [1 / quality - 1 for quality in qualities]
    return [labels, *((labels + shared + n * generator.normal(size=(seeds, 100)), (2 + n**2) ** -0.5) for n in noise)]


@pytest.mark.parametrize("seeds", [1, 3])
@pytest.mark.parametrize("qualities", [[0.5, 0.5, 0.5], [0.5, 0.6, 0.4]])
def test_all_intervals_of_a_family_hold_in_95_of_100_studies(qualities: list[float], seeds: int) -> None:
    """Two systems against one reference on two tasks and their mean: six comparisons that depend on each other.

    Without a true difference, an interval that misses is a difference called where there is none. Of 200 studies 10 may
    miss, and chance alone adds up to 6.
    """
    missed = 0
    for trial in range(200):
        generator = np.random.default_rng(trial)
        family: list[tuple[Resampled, float]] = []
        tasks = [(metric, *of_quality(metric, qualities, generator, seeds)) for metric in SYSTEMS]
        for line in (3, 4):
            parts = [
                (resample_paired(task[0], *(list(task[i][0]) for i in (line, 2)), task[1], resamples=499, seed=number),
                 task[line][1] - task[2][1])
                for number, task in enumerate(tasks)
            ]  # fmt: skip
            family += [*parts, (mean_difference([part for part, _ in parts]), np.mean([truth for _, truth in parts]))]
        intervals = [(resampled.comparison(len(family)).interval, truth) for resampled, truth in family]
        missed += any(not low <= truth <= high for (low, high), truth in intervals)
    assert 1 <= missed <= 16


def test_the_interval_of_an_accuracy_is_as_wide_as_theory_says() -> None:
    """The gain of an example is +1, -1 or 0, so the standard error is that of a mean of such numbers."""
    labels = np.zeros(2000)
    ours, theirs = labels.copy(), labels.copy()
    ours[:200], theirs[150:450] = 1, 1
    gain = (theirs != 0).astype(float) - (ours != 0)
    error = gain.std() / np.sqrt(len(labels))
    for family in (1, 10):
        quantile = stats.norm.isf(LEVEL / family / 2)
        interval = resample_paired("accuracy", [ours], [theirs], labels).comparison(family).interval
        assert interval == pytest.approx((gain.mean() - quantile * error, gain.mean() + quantile * error), abs=2e-3)


@pytest.mark.parametrize("seeds", [1, 3])
def test_resampled_correlations_are_those_of_the_resampled_rows(seeds: int) -> None:
    """Sums give the same r as correlating row by row does, for known swaps."""
    ours, theirs, labels = regressors(np.random.default_rng(3), rows=40, seeds=seeds)
    ours, theirs, target = (_standardised(x.astype(float)) for x in (ours, theirs, labels))

    def mean_r(x: np.ndarray, t: np.ndarray) -> float:
        return float(np.mean([np.corrcoef(row, t)[0, 1] for row in x]))

    swap = np.random.default_rng([5, 0]).integers(0, 2, (7, 40), dtype=np.uint8).astype(bool)
    expected = [mean_r(np.where(s, theirs, ours), target) - mean_r(np.where(s, ours, theirs), target) for s in swap]
    null = resample_paired("pearson", list(ours), list(theirs), labels, resamples=7, seed=5).null
    assert null == pytest.approx(expected)


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
    widths = [np.ptp(comparison.interval) for comparison in (*(p.comparison() for p in parts), mean)]
    assert widths[-1] < np.mean(widths[:-1])
    same = mean_difference([parts[0], parts[0]]).comparison()
    assert same == parts[0].comparison()


def test_the_test_of_a_mean_over_tasks_is_that_of_their_rows_together() -> None:
    """Tasks of equally many rows: their mean gain is that of all rows, so McNemar's test of all of them is exact."""
    parts, rows = [], 200
    disagreements = [(14, 8), (3, 9), (30, 14)]  # the first alone has p = 0.29, the last p = 0.02
    for task, (ours, theirs) in enumerate(disagreements):
        labels = np.zeros(rows)
        system, reference = labels.copy(), labels.copy()
        reference[:ours] = 1
        system[100 : 100 + theirs] = 1
        parts.append(resample_paired("accuracy", [system], [reference], labels, resamples=50_000, seed=task))
    ours, theirs = map(sum, zip(*disagreements, strict=True))
    exact = stats.binomtest(ours, ours + theirs).pvalue
    for order in (parts, parts[::-1]):
        mean = mean_difference(order).comparison()
        assert mean.difference == pytest.approx((ours - theirs) / (rows * len(parts)))
        assert mean.p_value == pytest.approx(exact, rel=0.1)
