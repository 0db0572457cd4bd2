"""Scores of a run, and paired tests between runs.

Scores are computed over a whole split at once: a mean of Pearson over batches is not Pearson.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import stats

if TYPE_CHECKING:
    import evaluate

from pipeline.tasks import Metric


def accuracy(predictions: np.ndarray, references: np.ndarray) -> float:
    return float(np.mean(predictions == references))


def pearson(predictions: np.ndarray, references: np.ndarray) -> float:
    """Pearson's r on unclipped scores; 0 where it is undefined, because all predictions or all labels are equal."""
    if np.ptp(predictions) == 0 or np.ptp(references) == 0:
        return 0.0
    return float(stats.pearsonr(predictions, references).statistic)


@cache
def load_metric(metric: Metric) -> evaluate.Metric:
    """The metric as an :class:`evaluate.Metric`, to be used with its tools (``combine``, ``evaluator``).

    Ours because ``evaluate.load(name)`` downloads code from the Hub.
    """
    # Here, not above: evaluate takes seconds to import, and most commands score nothing.
    import datasets
    import evaluate

    function = {"accuracy": accuracy, "pearson": pearson}[metric]
    number = datasets.Value("float64")

    class _Metric(evaluate.Metric):
        def _info(self) -> evaluate.MetricInfo:
            features = datasets.Features({"predictions": number, "references": number})
            return evaluate.MetricInfo(description=function.__doc__ or metric, citation="", features=features)

        def _compute(self, predictions: Any, references: Any) -> dict[str, float]:
            return {metric: function(np.asarray(predictions), np.asarray(references))}

    # It makes a cache folder even when told to keep everything in memory, and uses it for nothing.
    with tempfile.TemporaryDirectory() as unused:
        return _Metric(keep_in_memory=True, cache_dir=unused)


def score(metric: Metric, predictions: np.ndarray, labels: np.ndarray) -> float:
    """The score of predictions (B,) against labels (B,), higher is better.

    Raises:
        ValueError: a prediction is not a finite number.
    """
    if not np.isfinite(predictions).all():
        raise ValueError("predictions hold NaN or infinity")
    return float(load_metric(metric).compute(predictions=predictions, references=labels)[metric])


def overall(scores: dict[str, float], metrics: dict[str, Metric]) -> tuple[float, float]:
    """The two overall scores in use: the plain mean, and the mean with Pearson's r brought to 0..1 by (r + 1) / 2."""
    plain = float(np.mean(list(scores.values())))
    brought = [(value + 1) / 2 if metrics[target] == "pearson" else value for target, value in scores.items()]
    return plain, float(np.mean(brought))


@dataclass(frozen=True)
class Comparison:
    """One system against a reference on the same examples over the same seeds."""

    difference: float
    """Mean score of the system minus the reference's."""
    p_value: float

    def verdict(self, *, level: float = 0.05) -> str:
        """What may be said of the system against the reference at this level."""
        if self.p_value >= level:
            return "no difference seen"
        return "better" if self.difference > 0 else "worse"


def compare_paired(
    metric: Metric,
    system: Sequence[np.ndarray],
    reference: Sequence[np.ndarray],
    labels: np.ndarray,
    *,
    resamples: int = 2000,
    seed: int = 0,
) -> Comparison:
    """Paired randomisation test of two systems, each with predictions (seeds, B) on the same B examples.

    Under the null hypothesis the systems are exchangeable example by example, so each resample swaps the two for a
    random half of the examples, in all seeds at once: predictions of one example under several seeds are not
    independent. Exact up to sampling for any metric of the whole split (Noreen 1989; Yeh 2000).

    For ``pearson``, predictions are first brought to mean 0 and deviation 1 a run, which leaves r as it is: swapping
    between systems of different scale would otherwise lower r for both by itself.
    """
    if len(system) != len(reference):
        raise ValueError(f"paired runs needed: {len(system)} against {len(reference)}")
    ours, theirs = np.asarray(system, dtype=np.float64), np.asarray(reference, dtype=np.float64)
    if metric == "accuracy":
        ours, theirs = ours == labels, theirs == labels
        gain = (ours.astype(np.float64) - theirs.astype(np.float64)).mean(axis=0)  # (B,)
        observed, drawn = float(gain.mean()), _mean_swaps(gain, resamples, seed)
    else:
        ours, theirs = _standardised(ours), _standardised(theirs)
        observed, drawn = _pearson_swaps(ours, theirs, labels, resamples, seed)
    # The observed arrangement is one of the possible ones, hence + 1: p is never 0. Rounding must not split ties.
    extreme = int(np.sum(np.abs(drawn) >= abs(observed) - 1e-12))
    return Comparison(observed, (extreme + 1) / (resamples + 1))


def _mean_swaps(gain: np.ndarray, resamples: int, seed: int) -> np.ndarray:
    """Means of ``gain`` (B,) with random signs. Examples without a gain cannot matter, so none is drawn for them."""
    generator, size = np.random.default_rng(seed), len(gain)
    gain = gain[gain != 0]
    return np.array([generator.choice((-1.0, 1.0), len(gain)) @ gain / size for _ in range(resamples)])


def _standardised(predictions: np.ndarray) -> np.ndarray:
    # The mean of equal numbers may differ from them by rounding, so a constant is known by its range.
    constant = np.ptp(predictions, axis=-1, keepdims=True) == 0
    centred = np.where(constant, 0, predictions - predictions.mean(axis=-1, keepdims=True))
    return centred / np.where(constant, 1, predictions.std(axis=-1, keepdims=True))


def _pearson_swaps(
    ours: np.ndarray, theirs: np.ndarray, labels: np.ndarray, resamples: int, seed: int
) -> tuple[float, np.ndarray]:
    target = _standardised(labels.astype(np.float64))

    def mean_r(predictions: np.ndarray) -> float:
        return float((_standardised(predictions) @ target / len(target)).mean())

    generator = np.random.default_rng(seed)
    drawn = np.empty(resamples)
    for index in range(resamples):
        swap = generator.random(len(target)) < 0.5
        drawn[index] = mean_r(np.where(swap, theirs, ours)) - mean_r(np.where(swap, ours, theirs))
    return mean_r(ours) - mean_r(theirs), drawn


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction: the adjusted p-values of one table, in the order given."""
    order = np.argsort(p_values)
    adjusted = np.empty(len(p_values))
    running = 0.0
    for rank, index in enumerate(order):
        running = max(running, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = running
    return [float(value) for value in adjusted]
