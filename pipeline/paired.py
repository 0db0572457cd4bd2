"""Paired tests and confidence intervals between systems that were scored on the same examples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from pipeline.tasks import Metric

Verdict = Literal["better", "worse", "no difference seen"]

# Holm's correction multiplies p by up to the number of tests in a table, so p must be able to be small.
RESAMPLES = 10_000
# Enough for the quantiles of an interval.
DRAWS = 2_000


@dataclass(frozen=True)
class Comparison:
    """One system against a reference on the same examples over the same seeds."""

    difference: float
    """Mean score of the system minus the reference's."""
    p_value: float
    interval: tuple[float, float] | None = None
    """95 % confidence interval of the difference, of this comparison alone: no correction widens it."""

    def verdict(self, *, level: float = 0.05) -> Verdict:
        """What may be said of the system against the reference at this level."""
        if self.p_value >= level:
            return "no difference seen"
        return "better" if self.difference > 0 else "worse"


@dataclass(frozen=True)
class Resampled:
    """A difference between two systems, and what it would have been on other data."""

    difference: float
    null: np.ndarray
    """(R,) differences if the systems were exchangeable: each example's predictions swapped or not at random."""
    drawn: np.ndarray
    """(D,) differences on examples drawn anew, with replacement."""

    def comparison(self) -> Comparison:
        # The observed arrangement is one of the possible ones, hence + 1: p is never 0. Rounding must not split ties.
        extreme = int(np.sum(np.abs(self.null) >= abs(self.difference) - 1e-9))
        low, high = np.quantile(self.drawn, (0.025, 0.975))
        return Comparison(self.difference, (extreme + 1) / (len(self.null) + 1), (float(low), float(high)))


def resample_paired(
    metric: Metric,
    system: Sequence[np.ndarray],
    reference: Sequence[np.ndarray],
    labels: np.ndarray,
    *,
    resamples: int = RESAMPLES,
    draws: int = DRAWS,
    seed: int = 0,
) -> Resampled:
    """Paired randomisation and paired bootstrap of two systems, each with predictions (S, B) on the same B examples.

    Randomisation gives the test: under the null hypothesis the systems are exchangeable example by example, so each
    resample swaps the two for a random half of the examples, in all S seeds at once: predictions of one example under
    several seeds are not independent. Exact up to sampling for any metric of the whole split (Noreen 1989; Yeh 2000).
    For the accuracy of one seed it is the exact test of McNemar (1947): only examples on which the two disagree count.

    The bootstrap gives the interval: examples are drawn with replacement, the same for both systems and all seeds
    (Efron & Tibshirani 1993; Berg-Kirkpatrick et al. 2012).

    There are ``resamples`` swaps (R) and ``draws`` (D).

    Both are about other examples from where these came from; how far other seeds would move the scores is what their
    deviation over seeds shows.

    For ``pearson``, predictions are first brought to mean 0 and deviation 1 a run, which leaves r as it is: swapping
    between systems of different scale would otherwise lower r for both by itself.

    Raises:
        ValueError: the two have different numbers of seeds.
    """
    if len(system) != len(reference):
        raise ValueError(f"paired runs needed: {len(system)} against {len(reference)}")
    ours, theirs = np.asarray(system, dtype=np.float64), np.asarray(reference, dtype=np.float64)
    swapping, drawing = np.random.default_rng([seed, 0]), np.random.default_rng([seed, 1])
    if metric == "accuracy":
        gain = ((ours == labels).astype(np.float64) - (theirs == labels)).mean(axis=0)  # (B,)
        return Resampled(float(gain.mean()), _mean_swaps(gain, resamples, swapping), _means(gain, draws, drawing))
    ours, theirs = _standardised(ours), _standardised(theirs)
    target = _standardised(labels.astype(np.float64))
    observed = float(((ours - theirs) @ target / len(target)).mean())
    null = _pearson_swaps(ours, theirs, target, resamples, swapping)
    return Resampled(observed, null, _pearson_draws(ours, theirs, target, draws, drawing))


def mean_difference(parts: Sequence[Resampled]) -> Resampled:
    """The mean of differences that were resampled independently, as those of several tasks with a seed each."""
    return Resampled(
        float(np.mean([part.difference for part in parts])),
        np.mean([part.null for part in parts], axis=0),
        np.mean([part.drawn for part in parts], axis=0),
    )


def _mean_swaps(gain: np.ndarray, resamples: int, generator: np.random.Generator) -> np.ndarray:
    """(R,) means of ``gain`` (B,) with random signs.

    Gains of S seeds take few values, and k random signs sum to twice a binomial number less k.
    """
    sizes, counts = np.unique(np.abs(gain).round(9), return_counts=True)
    signs = [2 * generator.binomial(count, 0.5, resamples) - count for count in counts]
    return np.tensordot(sizes, np.array(signs), axes=1) / len(gain)


def _means(gain: np.ndarray, draws: int, generator: np.random.Generator) -> np.ndarray:
    """(D,) means of ``gain`` over B examples drawn with replacement."""
    sizes, counts = np.unique(gain.round(9), return_counts=True)
    return generator.multinomial(len(gain), counts / len(gain), draws) @ sizes / len(gain)


def _standardised(predictions: np.ndarray) -> np.ndarray:
    # The mean of equal numbers may differ from them by rounding, so a constant is known by its range.
    constant = np.ptp(predictions, axis=-1, keepdims=True) == 0
    centred = np.where(constant, 0, predictions - predictions.mean(axis=-1, keepdims=True))
    return centred / np.where(constant, 1, predictions.std(axis=-1, keepdims=True))


def _pearson_swaps(
    ours: np.ndarray, theirs: np.ndarray, target: np.ndarray, resamples: int, generator: np.random.Generator
) -> np.ndarray:
    """(R,) differences in mean r after random swaps; all standardised, ``ours`` and ``theirs`` (S, B)."""
    # r needs three sums a run; a swap moves the same amount from one system's to the other's.
    ours_sums, theirs_sums = (np.stack([x, x**2, x * target]).sum(axis=-1) for x in (ours, theirs))  # (3, S)
    moved = np.stack([theirs - ours, theirs**2 - ours**2, (theirs - ours) * target])  # (3, S, B)
    size, spread = len(target), float(np.mean(target**2))
    drawn = []
    for rows in _blocks(resamples, size):
        swap = generator.integers(0, 2, (rows, size), dtype=np.uint8).astype(np.float64)
        change = np.moveaxis(moved @ swap.T, -1, 0)  # (rows, 3, S)
        drawn.append(_mean_r(ours_sums + change, size, 0.0, spread) - _mean_r(theirs_sums - change, size, 0.0, spread))
    return np.concatenate(drawn)


def _pearson_draws(
    ours: np.ndarray, theirs: np.ndarray, target: np.ndarray, draws: int, generator: np.random.Generator
) -> np.ndarray:
    """(D,) differences in mean r over examples drawn with replacement; arguments as in :func:`_pearson_swaps`."""
    size = len(target)
    of_target = np.stack([target, target**2])  # (2, B)
    both = [np.stack([x, x**2, x * target]) for x in (ours, theirs)]  # (3, S, B)
    drawn = []
    for rows in _blocks(draws, size):
        chosen = generator.integers(0, size, (rows, size))
        chosen += np.arange(rows)[:, None] * size
        times = np.bincount(chosen.ravel(), minlength=rows * size).reshape(rows, size).astype(np.float64)
        mean, square = of_target @ times.T / size  # (rows,)
        r = [_mean_r(np.moveaxis(x @ times.T, -1, 0), size, mean[:, None], square[:, None]) for x in both]
        drawn.append(r[0] - r[1])
    return np.concatenate(drawn)


def _mean_r(sums: np.ndarray, size: int, mean: np.ndarray | float, square: np.ndarray | float) -> np.ndarray:
    """Mean over seeds of Pearson's r from sums (R, 3, S) of x, x^2 and x t, and the means of t and t^2; (R,)."""
    of_x, squares, products = np.moveaxis(sums / size, 1, 0)
    variances = (squares - of_x**2) * (square - np.square(mean))
    constant = variances < 1e-12
    return np.where(constant, 0, (products - of_x * mean) / np.sqrt(np.where(constant, 1, variances))).mean(axis=-1)


def _blocks(resamples: int, size: int) -> Iterator[int]:
    """Resamples of ``size`` examples to be held at once: their matrices are kept to tens of megabytes."""
    most = max(1, 2**22 // size)
    for first in range(0, resamples, most):
        yield min(most, resamples - first)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction: the adjusted p-values of one table, in the order given."""
    order = np.argsort(p_values)
    adjusted = np.empty(len(p_values))
    running = 0.0
    for rank, index in enumerate(order):
        running = max(running, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = running
    return [float(value) for value in adjusted]
