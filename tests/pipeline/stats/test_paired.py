"""Verdict and interval are one reading: seldom wrong where there is no difference, and right as often as they say."""

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from pipeline.data.labels import METRICS_OF
from pipeline.reporting.report import comparison_text
from pipeline.stats.metrics import METRICS, Metric, score
from pipeline.stats.paired import (
    LEVEL,
    Comparison,
    Difference,
    Origin,
    Shared,
    _over_seeds,
    mean_difference,
    paired_difference,
    score_interval,
)

Systems = tuple[np.ndarray, np.ndarray, np.ndarray]


def compare_paired(*systems: Any, **settings: Any) -> Comparison:
    return paired_difference(*systems, **settings).comparison()


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
    comparison = compare_paired(metric, list(ours), list(ours), labels)
    assert comparison == Comparison(0, 1, (0, 0), seeds)
    assert comparison.verdict == "not significant"


@pytest.mark.parametrize("metric", SYSTEMS)
def test_the_difference_is_that_of_the_mean_scores_and_turns_its_sign_with_the_systems(metric: Metric) -> None:
    ours, theirs, labels = SYSTEMS[metric](np.random.default_rng(1), seeds=3)
    comparison = compare_paired(metric, list(ours), list(theirs), labels)
    means = [np.mean([score(metric, run, labels) for run in runs]) for runs in (ours, theirs)]
    assert comparison.difference == pytest.approx(means[0] - means[1], abs=1e-12)
    assert compare_paired(metric, list(theirs), list(ours), labels).difference == pytest.approx(-comparison.difference)


def test_few_examples_that_all_differ_alike_prove_little() -> None:
    for rows, significant in ((1, False), (3, False), (300, True)):
        labels = np.zeros(rows)
        comparison = compare_paired("accuracy", [labels], [labels + 1], labels)
        assert (comparison.difference, comparison.significant) == (1, significant)
        assert comparison.p_value > 0


@pytest.mark.parametrize("constant", [0.1, 1 / 3, 1e6 + 0.1])
def test_a_system_that_always_says_the_same_is_tested_alike_whatever_it_says(constant: float) -> None:
    _, theirs, labels = regressors(np.random.default_rng(0))
    zero, other = (compare_paired("pearson", [np.full(100, value)], list(theirs), labels) for value in (0.0, constant))
    assert other.difference == pytest.approx(zero.difference)
    assert other.p_value == pytest.approx(zero.p_value)


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


@settings(max_examples=100, deadline=None, derandomize=True)
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
    seed=st.integers(0, 2**16),
)
def test_verdict_interval_and_p_agree(parts: Any, seeds: int, family: int, seed: int) -> None:
    """On one task or the mean over several, with ties, one example or all alike, in numbers and as they are printed."""
    generator = np.random.default_rng(seed)
    differences = []
    for metric, shape, rows in parts:
        ours, theirs, labels = drawn_systems(metric, shape, rows, seeds, generator)
        differences.append(paired_difference(metric, list(ours), list(theirs), labels))
    mean = mean_difference(differences) if len(parts) > 1 else differences[0]
    comparison = mean.comparison(family)
    low, high = comparison.interval
    assert low <= comparison.difference <= high
    assert comparison.significant == (low > 0 or high < 0) == (comparison.p_value < LEVEL)
    expected = "not significant" if low <= 0 <= high else "better" if comparison.difference > 0 else "worse"
    assert comparison.verdict == expected

    printed = re.search(f"CI {NUMBER} to {NUMBER}, p ([<=]) {NUMBER}", comparison_text(comparison, "it"))
    assert printed
    low_text, high_text, relation, p_text = printed.groups()
    assert comparison.significant == (float(low_text) > 0 or float(high_text) < 0)
    assert comparison.significant == (float(p_text) < LEVEL or (relation, float(p_text)) == ("<", LEVEL))


@pytest.mark.parametrize("p_value", [0.04999, 0.05, 0.0504])
def test_a_printed_p_stands_on_its_side_of_the_level(p_value: float) -> None:
    text = comparison_text(Comparison(0.1, p_value, (0.0, 0.2)), "it")
    assert text.endswith("p < 0.050" if p_value < LEVEL else "p = 0.050")


# How often it is right.


def test_the_reference_against_the_system_is_the_other_way_round() -> None:
    ours, theirs, labels = regressors(np.random.default_rng(2))
    there = compare_paired("pearson", list(ours), list(theirs), labels)
    low, high = there.interval
    assert there.reversed() == replace(there, difference=-there.difference, interval=(-high, -low))
    assert Comparison(0.1, 0.5, (-0.1, 0.3), seeds=4).reversed() == Comparison(-0.1, 0.5, (-0.3, 0.1), seeds=4)
    back = compare_paired("pearson", list(theirs), list(ours), labels)
    assert back.interval == pytest.approx(there.reversed().interval)


def of_quality(metric: Metric, qualities: list[float], generator: np.random.Generator, seeds: int) -> list[Any]:
    """Labels of 100 examples, then each system's predictions and true score; all find the same examples easy."""
    if metric == "accuracy":
        labels, easy = generator.integers(0, 2, 100), generator.uniform(-0.3, 0.3, 100)
        right = [generator.random((seeds, 100)) < quality + easy for quality in qualities]
        return [labels, *((np.where(r, labels, 1 - labels), q) for r, q in zip(right, qualities, strict=True))]
    labels, shared = generator.normal(size=(2, 100))
    noise = [1 / quality - 1 for quality in qualities]
    return [labels, *((labels + shared + n * generator.normal(size=(seeds, 100)), (2 + n**2) ** -0.5) for n in noise)]


@pytest.mark.covering(1)
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
        family: list[tuple[Difference, float]] = []
        tasks = [(metric, *of_quality(metric, qualities, generator, seeds)) for metric in SYSTEMS]
        for line in (3, 4):
            parts = [
                (paired_difference(task[0], *(list(task[i][0]) for i in (line, 2)), task[1]),
                 task[line][1] - task[2][1])
                for number, task in enumerate(tasks)
            ]  # fmt: skip
            family += [*parts, (mean_difference([part for part, _ in parts]), np.mean([truth for _, truth in parts]))]
        intervals = [(difference.comparison(len(family)).interval, truth) for difference, truth in family]
        missed += any(not low <= truth <= high for (low, high), truth in intervals)
    assert 1 <= missed <= 16


@pytest.mark.parametrize(("ours", "theirs"), [(30, 10), (10, 30), (12, 10), (5, 0)])
def test_for_one_seed_the_test_of_accuracy_is_about_mcnemars(ours: int, theirs: int) -> None:
    """Right where the other is wrong on ``ours`` and on ``theirs`` examples: the exact binomial test of those."""
    labels = np.zeros(200)
    system, reference = labels.copy(), labels.copy()
    reference[:ours] = 1
    system[100 : 100 + theirs] = 1
    exact = stats.binomtest(ours, ours + theirs).pvalue
    found = compare_paired("accuracy", [system], [reference], labels).p_value
    assert found == pytest.approx(exact, rel=0.2, abs=0.08)


def test_the_mean_over_tasks_of_equally_many_rows_is_tested_as_their_rows_together() -> None:
    rows, disagreements = 200, [(14, 8), (3, 9), (30, 14)]  # the first alone has p = 0.29, the last p = 0.02
    whole = [np.zeros(rows * 3), np.zeros(rows * 3)]
    parts = []
    for task, counts in enumerate(disagreements):
        both = [np.zeros(rows), np.zeros(rows)]
        for side, (count, start) in enumerate(zip(counts, (0, 100), strict=True)):
            both[side][start : start + count] = 1
            whole[side][task * rows : (task + 1) * rows] = both[side]
        parts.append(paired_difference("accuracy", [both[1]], [both[0]], np.zeros(rows)))
    together = paired_difference("accuracy", [whole[1]], [whole[0]], np.zeros(rows * 3)).comparison()
    for order in (parts, parts[::-1]):
        mean = mean_difference(order).comparison()
        assert mean.difference == pytest.approx(together.difference)
        assert mean.p_value == pytest.approx(together.p_value, rel=0.1)


# Other seeds.


def seeded(
    kind: Metric, systems: int, seeds: int, deviation: float, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Labels of 500 rows, and predictions (systems, seeds, rows) of equally good systems whose seeds differ.

    The score of a seed deviates by ``deviation`` for accuracy, and about twice that for Pearson's r.
    """
    rows = 500
    if kind == "accuracy":
        right = 0.3 + 0.65 * generator.random(rows) + generator.normal(0, deviation, (systems, seeds, 1))
        return np.zeros(rows), (generator.random((systems, seeds, rows)) > right).astype(float)
    labels, shared = generator.normal(size=rows), generator.normal(0, 0.5, rows)
    noise = 0.55 * np.exp(generator.normal(0, 5.5 * deviation, (systems, seeds, 1)))
    return labels, labels + shared + noise * generator.normal(size=(systems, seeds, rows))


@pytest.mark.slow
@pytest.mark.parametrize(("seeds", "most"), [(3, 0.06), pytest.param(5, 0.06, marks=pytest.mark.long)])
def test_where_seeds_differ_few_null_studies_have_a_verdict_and_intervals_hold_as_often_as_they_say(
    seeds: int, most: float
) -> None:
    """Five rows against a reference on three tasks and their mean. With fixed seeds half of such studies had a verdict.

    Intervals are those of a comparison alone, and hold in 95 of 100 cases.
    """
    wrong, covered, studies = 0, [], 300
    for trial in range(studies):
        generator, family = np.random.default_rng(trial), []
        tasks = [(kind, *seeded(kind, 6, seeds, 0.01, generator)) for kind in ("accuracy", "accuracy", "pearson")]
        for row in range(1, 6):
            parts = [paired_difference(kind, given[row], given[0], labels) for kind, labels, given in tasks]
            family += [*parts, mean_difference(parts)]
        wrong += any(difference.comparison(len(family)).significant for difference in family)
        covered += [not difference.comparison().significant for difference in family]
    assert wrong / studies <= most
    assert 0.93 <= np.mean(covered) <= 0.97


def cancelling(signs: list[int], rows: int, *, mirrored: bool = False) -> Difference:
    """Of 100 rows some are gained or lost at each seed by its sign; ``mirrored``: as many others the other way."""
    labels = np.zeros(100)
    gains = np.zeros((len(signs), 100))
    gains[:, :rows] = np.array(signs)[:, None]
    if mirrored:
        gains[:, rows : 2 * rows] = -gains[:, :rows]
    return paired_difference("accuracy", list((gains < 0).astype(float)), list((gains > 0).astype(float)), labels)


@pytest.mark.parametrize("rows", [1, 30, 50])
@pytest.mark.parametrize("signs", [[1, -1], [1, -1, 0], [1, -1, 1, -1]])
def test_gains_that_cancel_over_the_seeds_do_not_make_systems_alike(signs: list[int], rows: int) -> None:
    difference = cancelling(signs, rows)
    low, high = difference.comparison().interval
    assert difference.comparison().difference == 0 and difference.comparison().p_value == 1
    assert -low == high >= rows / 100  # by which a seed differs
    low, high = cancelling(signs, rows, mirrored=True).comparison().interval
    assert -low == high > 0  # though no seed does
    for shared in get_args(Shared):
        mean = mean_difference([difference, difference], shared)
        assert np.ptp(mean.comparison().interval) > 0


@pytest.mark.parametrize("shared", ["runs", "nothing"])
def test_a_seed_that_moves_all_scores_of_one_model_does_so_in_their_mean(shared: Shared) -> None:
    """Jointly trained models of four tasks against others, equally good, five seeds. Told that, 95 % hold."""
    wrong, studies = [], 300
    for trial in range(studies):
        generator, parts = np.random.default_rng(trial), []
        moved = generator.normal(0, 0.015, (2, 5, 1))
        for _ in range(4):
            right = 0.3 + 0.65 * generator.random(500) + moved
            ours, theirs = (generator.random((2, 5, 500)) > right).astype(float)
            parts.append(paired_difference("accuracy", list(ours), list(theirs), np.zeros(500)))
        mean = mean_difference(parts, shared)
        wrong.append(mean.comparison().significant)
    assert (np.mean(wrong) <= 0.07) == (shared == "runs")


def test_the_mean_of_one_model_over_tasks_that_answer_alike_is_that_of_one_task() -> None:
    ours, theirs, labels = SYSTEMS["accuracy"](np.random.default_rng(0), seeds=4)
    one = paired_difference("accuracy", list(ours), list(theirs), labels, [1, 2, 3, 4])
    same = paired_difference("accuracy", list(ours), list(ours), labels, [1, 2, 3, 4])
    mean = mean_difference([one, same], "runs")
    assert (mean.value, mean.variance) == pytest.approx((one.value / 2, one.variance / 4))
    assert mean.freedom == pytest.approx(one.freedom)
    few = paired_difference("accuracy", list(ours[:2]), list(theirs[:2]), labels, [8, 9])
    assert mean_difference([one, few], "runs") is None  # no two seeds in common


def test_a_variance_is_at_least_as_well_known_as_the_seeds_part_of_it() -> None:
    """Few rows and two seeds: what both together take away from the sum must not take its degrees of freedom away."""
    rng, least = np.random.default_rng(0), []
    for _ in range(300):
        labels = rng.integers(0, 2, 40)
        ours, theirs = (list(rng.integers(0, 2, (2, 40))) for _ in range(2))
        difference = paired_difference("accuracy", ours, theirs, labels)
        low, high = difference.comparison(family=6).interval
        least.append(difference.freedom)
        assert high - low < 100 * difference.variance**0.5 * 6
    assert min(least) == 1


def test_several_runs_of_a_seed_count_as_one() -> None:
    ours, theirs, labels = classifiers(np.random.default_rng(0), seeds=3)
    once = paired_difference("accuracy", list(ours), list(theirs), labels, seeds=[1, 2, 3])
    twice = paired_difference("accuracy", [*ours, *ours], [*theirs, *theirs], labels, seeds=[1, 2, 3, 1, 2, 3])
    assert twice == once == paired_difference("accuracy", list(ours), list(theirs), labels)


@pytest.mark.parametrize(
    "metric",
    [
        "accuracy",
        "macro-f1",
        "pearson",
        *(pytest.param(name, marks=pytest.mark.long) for name in ("matthews", "kappa", "spearman")),
    ],
)
def test_the_interval_of_a_score_covers_the_true_one_as_often_as_it_says(metric: Metric) -> None:
    generator, rows, draws = np.random.default_rng(5), 300, 600

    def sample(size: int) -> tuple[np.ndarray, np.ndarray]:
        if metric in ("pearson", "spearman"):
            labels = generator.normal(size=size)
            return labels + generator.normal(size=size), labels
        labels = generator.integers(0, 3, size)
        return np.where(generator.random(size) < 0.8, labels, generator.integers(0, 3, size)), labels

    true = METRICS[metric].score(*sample(1_000_000))
    intervals = [score_interval(metric, *sample(rows)) for _ in range(draws)]
    covered = sum(low <= true <= high for low, high in intervals) / draws
    assert 0.92 <= covered <= 0.98


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("size", [2, 3, 20, 119])
def test_a_perfect_score_of_few_rows_is_not_certain(metric: Metric, size: int) -> None:
    values = np.arange(size, dtype=float) if metric in METRICS_OF["score"] else np.arange(size) % 2
    low, high = score_interval(metric, values, values)
    assert high == 1.0
    assert low < 1 - 1 / size
    if size == 20:
        assert low > (0.8 if METRICS[metric].worst == 0 else 0.6)


@pytest.mark.parametrize("metric", ["balanced-accuracy", "macro-f1", "matthews", "kappa", "pearson", "spearman"])
@pytest.mark.parametrize("answer", [0, 1])
def test_the_interval_of_one_answer_to_all_rows_covers_the_true_score(metric: Metric, answer: int) -> None:
    """A system gives another answer, the right one, to 2 rows in 100; the sample of 100 rows happens to have none."""
    generator, covered = np.random.default_rng(answer), list[bool]()

    def sample(size: int) -> tuple[np.ndarray, np.ndarray]:
        if metric in METRICS_OF["score"]:
            labels = generator.normal(size=size)
            return (labels > stats.norm.isf(0.02)).astype(float), labels
        labels = (generator.random(size) < 0.3).astype(float)
        deviates = (labels != answer) & (generator.random(size) < 0.02 / (labels != answer).mean())
        return np.where(deviates, 1 - answer, answer).astype(float), labels

    true = METRICS[metric].score(*sample(1_000_000))
    while len(covered) < 60:
        predictions, labels = sample(100)
        if np.ptp(predictions) == 0:
            low, high = score_interval(metric, predictions, labels)
            covered.append(low <= true <= high)
    assert np.mean(covered) >= 0.95
    assert high - low < (0.8 if METRICS[metric].is_correlation else 0.3)


def test_equal_labels_say_nothing_of_a_correlation() -> None:
    for metric in METRICS:
        low, high = score_interval(metric, np.arange(40) % 2, np.zeros(40))
        assert ((low, high) == (-1, 1)) == (METRICS[metric].worst == -1)


@pytest.mark.parametrize(
    ("seeds", "family", "studies"), [(3, 1, 1500), pytest.param(5, 20, 5000, marks=pytest.mark.long)]
)
def test_sources_that_runs_of_a_seed_share_make_no_false_verdicts(seeds: int, family: int, studies: int) -> None:
    """Three targets, equally good systems: half of what a seed changes is the same on all of them."""
    wrong = Counter[str]()
    generator = np.random.default_rng(0)
    for study in generator.normal(size=(studies, seeds, 1)) + generator.normal(size=(studies, seeds, 3)):
        parts = [_over_seeds(of.mean(), Origin(1e-6, 1e6, 0.0, dict(enumerate(of)))) for of in study.T]
        for shared in ("nothing", "sources"):
            mean = mean_difference(parts, shared)
            wrong[shared] += mean.comparison(family).significant
    allowed = LEVEL / family * studies
    assert wrong["sources"] <= allowed
    assert wrong["nothing"] > 1.5 * allowed


# Rows that share texts.


@pytest.mark.parametrize("family", [1, 28])
def test_of_two_estimates_of_a_mean_the_wider_interval_stands_in_any_family(family: int) -> None:
    """With few seeds the one by common seeds has fewer degrees of freedom, which count for more in a large family."""
    turned = 0
    for trial in range(200):
        generator = np.random.default_rng(trial)
        parts = [
            paired_difference("accuracy", *(list(generator.integers(0, 2, (2, 200))) for _ in "ab"), np.zeros(200))
            for _ in range(3)
        ]
        mean, independent = mean_difference(parts, "runs"), mean_difference(parts)
        assert mean is not None and mean.estimate is not None and independent is not None
        widths = [np.ptp(each.comparison(family).interval) for each in (mean, independent)]
        common = np.ptp(replace(mean, estimate=None).comparison(family).interval)
        assert widths[0] == max(widths[1], common)
        alone = [np.ptp(replace(each, estimate=None).comparison().interval) for each in (mean, independent)]
        turned += (alone[0] > alone[1]) != (common > widths[1])
    assert (turned > 0) == (family > 1)


@pytest.mark.parametrize("metric", list(METRICS))
def test_groups_of_one_change_nothing_and_copies_of_every_row_add_nothing(metric: Metric) -> None:
    ours, theirs, labels = SYSTEMS.get(metric, SYSTEMS["accuracy"])(np.random.default_rng(3), seeds=3)
    single = paired_difference(metric, list(ours), list(theirs), labels)
    numbers = np.random.default_rng(0).permutation(len(labels))
    assert paired_difference(metric, list(ours), list(theirs), labels, groups=numbers) == single
    assert score_interval(metric, ours[0], labels, numbers) == score_interval(metric, ours[0], labels)

    copied = [np.tile(values, 3) for values in (numbers, labels)]
    sides = [[np.tile(run, 3) for run in side] for side in (ours, theirs)]
    grouped = paired_difference(metric, *sides, copied[1], groups=copied[0])
    assert grouped.value == pytest.approx(single.value)
    assert grouped.variance == pytest.approx(single.variance, rel=0.03)
    assert grouped.freedom == pytest.approx(single.freedom, rel=0.03)
    interval = score_interval(metric, sides[0][0], copied[1], copied[0])
    assert interval == pytest.approx(score_interval(metric, ours[0], labels), abs=2e-3)
    without = paired_difference(metric, *sides, copied[1])
    assert without.variance < 0.8 * grouped.variance


def in_fours(runs: int, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Predictions (runs, 400) that are as good and in groups of four depend on each other, for labels 0; the groups."""
    right = 0.75 + generator.normal(0, 0.15, (runs, 100)).repeat(4, axis=1)
    return (generator.random((runs, 400)) > right).astype(float), np.arange(400) // 4


@pytest.mark.parametrize(
    ("is_told", "least", "most"), [(True, 0.0, 0.06), pytest.param(False, 0.08, 0.3, marks=pytest.mark.long)]
)
def test_few_null_families_on_rows_that_share_texts_have_a_verdict(is_told: bool, least: float, most: float) -> None:
    """Five rows against a reference on three tasks and their mean, three seeds, groups of four rows."""
    wrong, studies = 0, 300
    for trial in range(studies):
        generator, labels, family = np.random.default_rng(trial), np.zeros(400), []
        tasks = [in_fours(6, generator) for _ in range(3)]
        moved = [generator.random((6, 3, 400)) < 0.05 for _ in tasks]
        for row in range(1, 6):
            parts = [
                paired_difference(
                    "accuracy",
                    *(list(np.abs(given[line] - change[line])) for line in (row, 0)),
                    labels,
                    groups=groups if is_told else None,
                )
                for (given, groups), change in zip(tasks, moved, strict=True)
            ]
            family += [*parts, mean_difference(parts)]
        wrong += any(difference.comparison(len(family)).significant for difference in family)
    assert least <= wrong / studies <= most


def test_the_interval_of_a_score_on_rows_that_share_texts_holds() -> None:
    held = {True: 0, False: 0}
    for trial in range(400):
        predictions, groups = in_fours(1, np.random.default_rng(trial))
        for is_told in held:
            low, high = score_interval("accuracy", predictions[0], np.zeros(400), groups if is_told else None)
            held[is_told] += low <= 0.75 <= high
    assert held[False] / 400 < 0.93 < held[True] / 400 < 0.98
    narrow, wide = (score_interval("accuracy", np.zeros(40), np.zeros(40), g) for g in (None, np.arange(40) // 4))
    assert wide == pytest.approx(score_interval("accuracy", np.zeros(10), np.zeros(10))) and narrow[0] > wide[0]


# What a study can find.


@pytest.mark.parametrize(("seeds", "deviation", "family"), [(1, 0.0, 1), (5, 0.01, 4), (5, 0.02, 4)])
def test_the_difference_said_to_be_detectable_is_found_four_times_in_five(
    seeds: int, deviation: float, family: int
) -> None:
    def study(trial: int, more: float) -> Comparison:
        generator, rows = np.random.default_rng(trial), 600
        quality = 0.7 + generator.normal(0, deviation, (2, seeds, 1)) + np.array([more, 0])[:, None, None]
        easy = generator.uniform(-0.1, 0.1, rows)
        wrong = (generator.random((2, seeds, rows)) > quality + easy).astype(float)
        return paired_difference("accuracy", *map(list, wrong), np.zeros(rows)).comparison(family)

    # A study knows its standard error only so well: what is said of the true one.
    size = float(np.mean([study(trial, 0.0).detectable ** 2 for trial in range(200)]) ** 0.5)
    assert 0.72 <= np.mean([study(1000 + trial, size).significant for trial in range(300)]) <= 0.88
