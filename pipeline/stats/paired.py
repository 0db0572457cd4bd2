"""Paired comparisons of systems on the same examples: verdict, interval and p-value from one randomisation test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from pipeline.stats.metrics import METRICS
from pipeline.stats.names import Metric

Verdict = Literal["better", "worse", "not significant"]

LEVEL = 0.05
"""The chance that a family of comparisons finds any difference where there is none, or has an interval that misses."""
# One comparison is tested at a fraction of LEVEL, so the smallest possible p must be far below it.
RESAMPLES = 10_000
_WIDEST = 2.0  # scores lie between -1 and 1


@dataclass(frozen=True)
class Comparison:
    """One system against a reference on the same examples over the same seeds, as one of a family of comparisons.

    Verdict, interval and p-value agree: a difference is significant exactly where its interval leaves out 0, and
    exactly where p is below ``LEVEL``.
    """

    difference: float  # mean score of the system minus the reference's
    p_value: float  # corrected for the family
    interval: tuple[float, float]
    """95 % confidence interval, simultaneous: all intervals of the family hold their true differences at once."""

    @property
    def verdict(self) -> Verdict:
        low, high = self.interval
        if low <= 0 <= high:
            return "not significant"
        return "better" if low > 0 else "worse"

    @property
    def significant(self) -> bool:
        return self.verdict != "not significant"

    def reversed(self) -> Comparison:
        """The reference against the system."""
        low, high = self.interval
        return Comparison(-self.difference, self.p_value, (-high, -low))


@dataclass(frozen=True)
class Resampled:
    """A difference between two systems, and its distribution under the null hypothesis."""

    difference: float
    null: np.ndarray
    """(R,) differences if the systems were exchangeable: each example's predictions swapped or not at random."""

    def comparison(self, family: int = 1) -> Comparison:
        """Judge the difference as one of ``family`` comparisons (Bonferroni; Dunn 1961).

        The interval is the difference plus and minus the margin that it must exceed for the test to reject at level
        ``LEVEL / family``: the interval leaves out 0 exactly where the test rejects. Null differences vary as much as
        the difference does where the two are equally good, and more where they are not, so that the interval of a
        large difference is somewhat wider than it need be.

        Holm's step-down correction rejects more, but has no two-sided intervals that always agree with it.
        """
        size = abs(self.difference)
        sizes = np.abs(self.null)
        # Ties must survive rounding.
        sizes = np.where(np.abs(sizes - size) < 1e-9, size, sizes)
        # p_values[k] belongs to a size that k null sizes reach. The observed arrangement is one of the possible ones,
        # hence + 1: p is never 0.
        p_values = family * np.arange(1, len(sizes) + 2) / (len(sizes) + 1)
        may_reach = int(np.sum(p_values < LEVEL))
        margin = float(np.sort(sizes)[-may_reach]) if may_reach else _WIDEST
        p_value = min(1.0, float(p_values[np.sum(sizes >= size)]))
        return Comparison(self.difference, p_value, (self.difference - margin, self.difference + margin))


def resample_paired(
    metric: Metric,
    system: Sequence[np.ndarray],
    reference: Sequence[np.ndarray],
    labels: np.ndarray,
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Resampled:
    """Paired randomisation of two systems, each with predictions (S, B) on the same B examples.

    Under the null hypothesis the systems are exchangeable example by example, so each of the ``resamples`` (R) swaps
    the two for a random half of the examples, in all S seeds at once: predictions of one example under several seeds
    are not independent. Exact up to sampling for any metric of the whole split (Noreen 1989; Yeh 2000).

    The test generalises to other examples from the same source. How far other seeds would move the scores is what
    their deviation over seeds shows.
    """
    if len(system) != len(reference):
        raise ValueError(f"paired runs needed: {len(system)} against {len(reference)}")
    ours, theirs, true = (np.asarray(values, dtype=np.float64) for values in (system, reference, labels))
    generator = np.random.default_rng([seed, 0])
    measure = METRICS[metric]
    parts = measure.parts(np.stack([ours, theirs]), true)  # (K, 2, S, B)
    if measure.of_sums is None:
        return _swap_means(parts[0], resamples, generator)
    return _swap_sums(parts, partial(measure.of_sums, true), resamples, generator)


def _swap_means(scores: np.ndarray, resamples: int, generator: np.random.Generator) -> Resampled:
    """For the mean over rows of ``scores`` (2, S, B): a swap turns the sign of a row's gain.

    Gains of S seeds take few values, and k random signs sum to twice a binomial number less k. The exact test of
    McNemar (1947) for one seed whose rows are right or wrong.
    """
    gain = (scores[0] - scores[1]).mean(axis=0)  # (B,)
    sizes, counts = np.unique(np.abs(gain).round(9), return_counts=True)
    signs = [2 * generator.binomial(count, 0.5, resamples) - count for count in counts]
    return Resampled(float(gain.mean()), np.tensordot(sizes, np.array(signs), axes=1) / len(gain))


def _swap_sums(
    parts: np.ndarray, score: Callable[[np.ndarray], np.ndarray], resamples: int, generator: np.random.Generator
) -> Resampled:
    """For a score (R, S) of sums (R, K, S) of ``parts`` (K, 2, S, B): a swap exchanges what a row adds to each sum."""
    ours, theirs = np.moveaxis(parts, 1, 0)  # (K, S, B)
    our_sums, their_sums = ours.sum(axis=-1), theirs.sum(axis=-1)  # (K, S)

    def differences(change: np.ndarray) -> np.ndarray:
        return score(our_sums + change).mean(axis=-1) - score(their_sums - change).mean(axis=-1)

    rows, null = parts.shape[-1], []
    block = max(1, 2**22 // rows)  # of at most tens of megabytes
    for first in range(0, resamples, block):
        swaps = generator.integers(0, 2, (min(block, resamples - first), rows), dtype=np.uint8)
        change = (theirs - ours) @ swaps.astype(float).T  # (K, S, R)
        null.append(differences(np.moveaxis(change, -1, 0)))
    return Resampled(float(differences(np.zeros((1, *our_sums.shape)))[0]), np.concatenate(null))


def mean_difference(parts: Sequence[Resampled]) -> Resampled:
    """The mean of differences that were resampled independently, as those of several tasks with a seed each."""
    differences, null = [part.difference for part in parts], [part.null for part in parts]
    return Resampled(float(np.mean(differences)), np.mean(null, axis=0))
