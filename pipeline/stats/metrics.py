"""Scores of a run.

Scores are computed over a whole split at once: a mean of Pearson over batches is not Pearson.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import stats

if TYPE_CHECKING:
    import evaluate

from pipeline.data.tasks import Metric


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

        def _build_data_dir(self) -> str:
            # The base class makes a cache folder even where everything is kept in memory, and then leaves it empty.
            return ""

        def _compute(self, predictions: Any, references: Any) -> dict[str, float]:
            return {metric: function(np.asarray(predictions), np.asarray(references))}

    return _Metric(keep_in_memory=True)


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
