"""Paired comparisons of systems on the same examples and seeds: one t statistic gives verdict, interval and p-value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Self

import numpy as np
from scipy import special, stats

from pipeline.data.labels import METRICS_OF, Metric, are_sets, as_computed
from pipeline.stats.metrics import METRICS

Verdict = Literal["better", "worse", "not significant"]
Shared = Literal["nothing", "sources", "runs"]
"""What a seed's runs on several tasks share: the runs that they build on, or the run itself, which answers all."""

POWER = 0.8
"""The probability that a study finds its detectable difference."""
LEVEL = 0.05
"""The probability that a family of comparisons finds a difference that does not exist, or that an interval misses."""
_EQUAL = 1e-9
"""Numbers that differ by less are equal up to rounding."""
_LEAST = 0.8
"""Lower bound of the variance as a share of the examples' part. At 1, intervals are too wide (simulated)."""


@dataclass(frozen=True)
class Comparison:
    """One system against a reference on the same examples over the same seeds, as one of a family of comparisons.

    Verdict, interval and p-value agree: a difference is significant if and only if its interval excludes 0, and if and
    only if p is below ``LEVEL``.
    """

    difference: float  # mean score of the system minus the reference's
    p_value: float  # corrected for the family
    interval: tuple[float, float]
    """95 % confidence interval, simultaneous: all intervals of the family hold their true differences at once."""
    seeds: int = 1
    """Number of seeds; with one, the interval says nothing about other seeds."""
    detectable: float = 0.0
    """The true difference that such a study would find four times in five; 0 if the systems answer alike."""

    @property
    def verdict(self) -> Verdict:
        low, high = self.interval
        return "better" if low > 0 else "worse" if high < 0 else "not significant"

    @property
    def significant(self) -> bool:
        return self.verdict != "not significant"

    def reversed(self) -> Self:
        """The comparison with system and reference swapped."""
        low, high = self.interval
        return replace(self, difference=-self.difference, interval=(-high, -low))


@dataclass(frozen=True)
class Origin:
    """Components of the variance of a difference over several seeds: V, its degrees of freedom, I, and S."""

    examples: float
    freedom: float
    together: float
    of_seeds: Mapping[int, float]  # the mean difference at each seed

    @property
    def by_seeds(self) -> float:
        """S, for at least two seeds."""
        return float(np.var([*self.of_seeds.values()], ddof=1)) / len(self.of_seeds)


@dataclass(frozen=True)
class Difference:
    """A difference in score between two systems, with its variance."""

    value: float
    variance: float  # of ``value``, over examples and seeds
    freedom: float  # degrees of freedom of ``variance``
    seeds: int = 1  # with one seed, the variance says nothing about other seeds
    origin: Origin | None = field(default=None, compare=False)
    estimate: Difference | None = field(default=None, compare=False)
    """The same difference with another variance estimate; the wider of the two intervals counts."""

    def comparison(self, family: int = 1) -> Comparison:
        """Judge the difference as one of ``family`` comparisons (Bonferroni; Dunn 1961).

        Holm's step-down correction rejects more, but has no two-sided intervals that always agree with it.
        """
        judged = [self._judged(family), *([self.estimate._judged(family)] if self.estimate is not None else [])]
        return max(judged, key=lambda comparison: np.ptp(comparison.interval))

    def _judged(self, family: int) -> Comparison:
        error = float(np.sqrt(self.variance))
        if error == 0:  # the systems answer alike
            return Comparison(0.0, 1.0, (0.0, 0.0), self.seeds)
        threshold = float(stats.t.isf(LEVEL / family / 2, self.freedom))
        margin = error * threshold
        p_value = min(1.0, 2 * family * float(stats.t.sf(abs(self.value) / error, self.freedom)))
        detectable = error * float(special.nctdtrinc(self.freedom, 1 - POWER, threshold))  # of noncentral t
        return Comparison(self.value, p_value, (self.value - margin, self.value + margin), self.seeds, detectable)


def by_group(rows: np.ndarray, groups: np.ndarray | None) -> np.ndarray:
    """The contributions (..., G) of G groups to the mean of ``rows`` (..., B), with the same mean.

    Rows that share a text are not independent samples, but groups of them are. None: every row is a group.
    """
    if groups is None:
        return rows
    order = np.argsort(groups, kind="stable")
    starts = np.flatnonzero(np.diff(groups[order], prepend=groups[order][:1] - 1))
    if len(starts) == rows.shape[-1]:
        return rows
    return np.add.reduceat(rows[..., order], starts, axis=-1) * (len(starts) / rows.shape[-1])


def paired_difference(
    metric: Metric,
    system: Sequence[np.ndarray],
    reference: Sequence[np.ndarray],
    labels: np.ndarray,
    seeds: Sequence[int] | None = None,
    groups: np.ndarray | None = None,
) -> Difference:
    """The difference in mean score of two systems with predictions (R, B) of R runs on the same B rows.

    Examples and seeds are both samples: the interval covers other examples from the same source and other seeds. An
    example is a row, or a group of rows that share a text. Let g_si be the contribution of example i of B at seed s of
    n to the difference. Under crossed random effects its variance is V + S - I::

        V = mean_i((mean_s g)^2) / (B - 1)      S = var_s(mean_i g) / n      I = (mean_si(g^2) / (B - 1) - V) / (n - 1)

    Both V and S contain I, the interaction. V is taken around 0 rather than the mean, so that a few examples on which
    all differ alike prove little. The degrees of freedom are Satterthwaite's (1946). With one seed, the interval covers
    only other examples.

    Args:
        seeds: (R,) the seed of each pair of runs; pairs of one seed count as one. None: all seeds differ.
        groups: (B,) the number of each row's group, as :func:`by_group` sums them.
    """
    if len(system) != len(reference):
        raise ValueError(f"paired runs needed: {len(system)} against {len(reference)}")
    rows = METRICS[metric].rows
    true = as_computed(labels)
    ours, theirs = (rows(as_computed(values), true) for values in (system, reference))
    runs = ours - theirs
    of_seed = np.arange(len(runs)) if seeds is None else np.asarray(seeds)
    known = np.unique(of_seed)
    gains = by_group(np.stack([runs[of_seed == seed].mean(axis=0) for seed in known]), groups)  # (n, G)
    count, size = gains.shape
    freedom = max(size - 1, 1)
    value, by_examples = float(gains.mean()), float((gains.mean(axis=0) ** 2).mean()) / freedom
    if count == 1 or not gains.any():
        return Difference(value, by_examples, freedom, count)
    together = max(0.0, (float((gains**2).mean()) / freedom - by_examples) / (count - 1))
    means = dict(zip(known.tolist(), gains.mean(axis=1).tolist(), strict=True))
    # V contains I. If every example's gains cancel over the seeds, V is estimated as 0, and I is a better estimate.
    return _over_seeds(value, Origin(by_examples or together, freedom, together, means))


def _over_seeds(value: float, origin: Origin) -> Difference:
    """A difference with variance V + S - I and Satterthwaite's degrees of freedom."""
    count, examples, by_seeds = len(origin.of_seeds), origin.examples, origin.by_seeds
    variance = max(examples + by_seeds - origin.together, _LEAST * examples)
    # A sum never has fewer degrees of freedom than its least known part, but the subtraction of I can cause that.
    satterthwaite = variance**2 / (examples**2 / origin.freedom + by_seeds**2 / (count - 1))
    return Difference(value, variance, max(satterthwaite, min(count - 1, origin.freedom)), count, origin)


def score_interval(
    metric: Metric, predictions: np.ndarray, labels: np.ndarray, groups: np.ndarray | None = None
) -> tuple[float, float]:
    """95 % confidence interval of the score of predictions (B,) on labels (B,), over examples; B is at least 2.

    Accuracy has Wilson's interval (1927), which also holds near 0 and 1. Other metrics have a t interval of the rows'
    contributions, for correlations on Fisher's z (1915). A perfect score, or one answer to all rows, has no spread to
    estimate: the interval then allows for as many deviating rows as Wilson's does for 0 of B. Labels that are all equal
    say nothing about a correlation or kappa.

    Args:
        groups: (B,) the number of each row's group, as :func:`by_group` sums them. Wilson's interval then divides B by
            the design effect (Kish 1965).
    """
    measure = METRICS[metric]
    predictions, labels = as_computed(predictions), as_computed(labels)
    rows = measure.rows(predictions, labels)
    value, is_correlation = measure.score(predictions, labels), measure.is_correlation
    if metric == "accuracy":
        return _wilson(value, _independent(rows, groups))
    if measure.worst < 0 and np.ptp(labels) == 0:
        return measure.worst, 1.0
    low = high = value
    are_equal = rows.std() < _EQUAL or (is_correlation and 1 - abs(value) < _EQUAL)
    if are_equal or len(np.unique(predictions)) == 1:
        share = _wilson(0, _independent(np.ones(len(rows)), groups))[1]
        others = [value, *_with_deviating_rows(metric, predictions, labels, round(share * len(rows)))]
        low, high = min(others), max(others)
        if are_equal:
            margin = (1 - measure.worst) * share
            return max(measure.worst, min(low, value - margin)), min(1.0, max(high, value + margin))
    added = by_group(rows - rows.mean(), groups)
    margin = float(stats.t.isf(LEVEL / 2, max(len(added) - 1, 1)) * np.sqrt((added**2).mean() / max(len(added) - 1, 1)))
    if is_correlation:
        centre, margin = np.arctanh(value), margin / (1 - value**2)
        return float(np.tanh(centre - margin)), float(np.tanh(centre + margin))
    return max(measure.worst, low - margin), min(1.0, high + margin)


def _with_deviating_rows(metric: Metric, predictions: np.ndarray, labels: np.ndarray, most: int) -> list[float]:
    """Scores if up to ``most`` rows had another answer, all of one class, or those with the lowest or highest labels.

    Next to one answer to all others, a share s of the rows changes a correlation by the order of sqrt(s), though their
    contributions are 0; and rows of a rare class change any score by more than their share. No scores are returned for
    label sets and for scores that vary.
    """
    changes: list[tuple[np.ndarray, float]] = []
    if metric in METRICS_OF["score"] and np.ptp(predictions) == 0:
        order = np.argsort(labels)
        changes = [(rows, predictions[0] + 1) for rows in (order[:most], order[-most:])]
    elif metric in METRICS_OF["classes"] and not are_sets(labels):
        classes, counts = np.unique(labels, return_counts=True)
        classes = classes[np.argsort(counts)]
        for own in classes:  # now right, or mistaken for the largest other class
            rows = np.flatnonzero(labels == own)[:most]
            changes += [(rows, answer) for answer in (own, *classes[classes != own][-1:])]
    places = np.arange(len(labels))
    changed = [np.where(np.isin(places, rows), answer, predictions) for rows, answer in changes]
    return [METRICS[metric].score(answers, labels) for answers in changed]


def _independent(rows: np.ndarray, groups: np.ndarray | None) -> float:
    """The effective sample size of ``rows`` (B,) for their mean, at most B.

    Equal rows do not show how alike the rows of a group are, so groups are then taken to be fully correlated.
    """
    added = rows - rows.mean() if np.ptp(rows) else np.ones(len(rows))
    grouped = by_group(added, groups)
    return float(min(len(rows), len(grouped) * (added**2).mean() / (grouped**2).mean()))


def _wilson(share: float, rows: float) -> tuple[float, float]:
    z = float(stats.norm.isf(LEVEL / 2))
    centre, margin = share + z**2 / (2 * rows), z * np.sqrt(share * (1 - share) / rows + (z / rows) ** 2 / 4)
    low, high = ((centre + sign * margin) / (1 + z**2 / rows) for sign in (-1, 1))
    return float(low) if share > 0 else 0.0, float(high) if share < 1 else 1.0  # exact despite rounding


def mean_difference(parts: Sequence[Difference], shared: Shared = "nothing") -> Difference | None:
    """The mean of differences on several tasks with independent examples.

    None if some have one seed and others several: an interval would cover other seeds only for the latter.

    Args:
        shared: what a seed's runs on several tasks share, which correlates their scores.
    """
    fewest = min(part.seeds for part in parts)
    if fewest == 1 < max(part.seeds for part in parts):
        return None
    value, count = float(np.mean([part.value for part in parts])), len(parts)
    variances = np.array([part.variance for part in parts]) / count**2
    freedoms = np.array([part.freedom for part in parts])
    variance, spread = float(variances.sum()), float((variances**2 / freedoms).sum())
    freedom = variance**2 / spread if spread else float(freedoms.sum())
    independent = Difference(value, variance, freedom, fewest)
    origins = [part.origin for part in parts if part.origin is not None]
    if shared == "nothing" or not origins:
        return independent
    if shared == "sources":
        return replace(_of_shared_sources(independent, origins, count), estimate=independent)
    common = _of_one_model(value, count, origins)
    # With few seeds both estimates are poor and may be too small by chance, so the wider interval counts. Which one is
    # wider depends on the family, because their degrees of freedom differ.
    return None if common is None else replace(common, estimate=independent)


def _of_shared_sources(independent: Difference, origins: Sequence[Origin], count: int) -> Difference:
    """The mean of ``count`` differences as if their seed effects were perfectly correlated: sqrt(S) adds up, not S.

    Shared sources correlate them less. With degrees of freedom as for independent effects, the test keeps its level if
    at most half of the seed effect is shared (simulated).
    """
    by_seeds = np.array([origin.by_seeds for origin in origins])
    apart, together = float(by_seeds.sum()), float(np.sqrt(by_seeds).sum() ** 2)
    variance = independent.variance + (together - apart) / count**2
    spread = sum((origin.examples / count**2) ** 2 / origin.freedom for origin in origins)
    spread += together * sum(origin.by_seeds / (len(origin.of_seeds) - 1) for origin in origins) / count**4
    freedom = variance**2 / spread if spread else independent.freedom
    return replace(independent, variance=variance, freedom=freedom)


def _of_one_model(value: float, count: int, origins: Sequence[Origin]) -> Difference | None:
    """The mean ``value`` of ``count`` differences over their common seeds; None with fewer than two of these.

    Differences of systems that answer alike have no origin; they are 0.
    """
    common = sorted(set.intersection(*(set(origin.of_seeds) for origin in origins)))
    if len(common) < 2:
        return None
    of_seeds = {seed: sum(origin.of_seeds[seed] for origin in origins) / count for seed in common}
    examples = np.array([origin.examples for origin in origins]) / count**2
    freedom = float(examples.sum() ** 2 / (examples**2 / [origin.freedom for origin in origins]).sum())
    together = sum(origin.together for origin in origins) / count**2
    return _over_seeds(value, Origin(float(examples.sum()), freedom, together, of_seeds))
