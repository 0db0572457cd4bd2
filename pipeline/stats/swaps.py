"""Paired randomisation: the difference in score of two systems, and what it is after random swaps of their rows.

Systems are arrays (S, B): S seeds, B rows. Each resample swaps the two systems' predictions on a random half of the
rows, in all seeds at once. :func:`recomputed` works for any metric. Where a score is a function of sums over rows,
:func:`by_sums` gives the same numbers much faster, since a swap moves what a row adds from one system to the other.
"""

from collections.abc import Callable, Iterator

import numpy as np

Score = Callable[[np.ndarray, np.ndarray], float]
Randomisation = Callable[[np.ndarray, np.ndarray, np.ndarray, int, np.random.Generator], tuple[float, np.ndarray]]
"""``(ours (S, B), theirs (S, B), labels (B,), resamples, generator)`` to the difference in mean score over seeds, and
the null distribution (R,) of that difference."""


def recomputed(score: Score) -> Randomisation:
    """Score the swapped predictions anew in each resample."""

    def randomise(
        ours: np.ndarray, theirs: np.ndarray, labels: np.ndarray, resamples: int, generator: np.random.Generator
    ) -> tuple[float, np.ndarray]:
        def difference(swap: np.ndarray) -> float:
            systems = np.where(swap, theirs, ours), np.where(swap, ours, theirs)
            first, second = (np.mean([score(values, labels) for values in system]) for system in systems)
            return float(first - second)

        swaps = (swap for block in _swaps(resamples, len(labels), generator) for swap in block)
        return difference(np.zeros(len(labels))), np.array([difference(swap) for swap in swaps])

    return randomise


def by_rows(row_scores: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Randomisation:
    """For a score that is the mean of ``row_scores(predictions (S, B), labels)`` (S, B).

    A swap turns the sign of a row's gain. Gains of S seeds take few values, and k random signs sum to twice a binomial
    number less k. The exact test of McNemar (1947) for one seed whose rows are right or wrong.
    """

    def randomise(
        ours: np.ndarray, theirs: np.ndarray, labels: np.ndarray, resamples: int, generator: np.random.Generator
    ) -> tuple[float, np.ndarray]:
        gain = (row_scores(ours, labels) - row_scores(theirs, labels)).mean(axis=0)  # (B,)
        sizes, counts = np.unique(np.abs(gain).round(9), return_counts=True)
        signs = [2 * generator.binomial(count, 0.5, resamples) - count for count in counts]
        return float(gain.mean()), np.tensordot(sizes, np.array(signs), axes=1) / len(gain)

    return randomise


def by_sums(
    parts: Callable[[np.ndarray, np.ndarray], np.ndarray], score: Callable[[np.ndarray, np.ndarray], np.ndarray]
) -> Randomisation:
    """For a score that follows from sums over rows.

    Args:
        parts: what each row adds, (K, 2, S, B), from predictions (2, S, B) of both systems and labels (B,).
        score: (R, S) scores from sums (R, K, S) and labels.
    """

    def randomise(
        ours: np.ndarray, theirs: np.ndarray, labels: np.ndarray, resamples: int, generator: np.random.Generator
    ) -> tuple[float, np.ndarray]:
        ours_parts, theirs_parts = np.moveaxis(parts(np.stack([ours, theirs]), labels), 1, 0)  # (K, S, B)
        ours_sums, theirs_sums = ours_parts.sum(axis=-1), theirs_parts.sum(axis=-1)  # (K, S)
        moved = theirs_parts - ours_parts

        def differences(change: np.ndarray) -> np.ndarray:
            first, second = (score(sums, labels).mean(axis=-1) for sums in (ours_sums + change, theirs_sums - change))
            return first - second

        blocks = (moved @ swaps.astype(float).T for swaps in _swaps(resamples, len(labels), generator))  # (K, S, R)
        null = np.concatenate([differences(np.moveaxis(block, -1, 0)) for block in blocks])
        return float(differences(np.zeros((1, *ours_sums.shape)))[0]), null

    return randomise


def _swaps(resamples: int, rows: int, generator: np.random.Generator) -> Iterator[np.ndarray]:
    """Which rows each resample swaps, in blocks (R, B) of at most tens of megabytes."""
    most = max(1, 2**22 // rows)
    for first in range(0, resamples, most):
        yield generator.integers(0, 2, (min(most, resamples - first), rows), dtype=np.uint8)
