"""Ensembles from saved predictions: which models take part, with what weight, and what they predict together.

- ``mean``: of the unrounded predictions (probabilities of classes, scores), of members chosen by a forward pass over
  the models, best first: one is added if the score does not fall (Hayes 2024).
- ``uniform``: the mean of all models, of which none is chosen. With few rows to choose on it keeps what choice loses.
- ``weighted``: the same mean, weighted by how often each was added. Each time the one is added that does best with
  those already there, which may be one of them again (Caruana et al. 2004).
- ``mode``: the class that most of the best members predict; of classes with equally many, the one with the largest sum
  of probabilities. ``torch.mode`` would take the smallest label (Wang 2024 leaves ties open).
- ``median``: of the best members' scores; of an even number the mean of the middle two, where ``torch.median`` would
  give the lower.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.data.metric_names import EnsembleRule, Metric
from pipeline.data.prediction import Prediction
from pipeline.stats.metrics import score

BEST = 5  # members of ``mode`` and ``median``, as in Wang 2024
ROUNDS = 50  # most members of ``weighted``, counted as often as they are added


def combine(predictions: Sequence[Prediction], weights: Sequence[float], rule: EnsembleRule) -> Prediction:
    """The ensemble's prediction, with positive weights that add up to one; a single model's is the model's own.

    Of classes, the probabilities are the weighted mean whatever the rule, and under ``mode`` the class need not be the
    most probable one.
    """
    if len(predictions) == 1:
        return predictions[0]
    values = np.stack([prediction.values for prediction in predictions])  # (models, rows)
    # In fp64, so that sums do not depend on their order.
    each = [p.probabilities.astype(np.float64) for p in predictions if p.probabilities is not None]
    if not each:
        return Prediction(np.median(values, axis=0) if rule == "median" else np.asarray(weights) @ values, None)
    mean = np.tensordot(np.asarray(weights), np.stack(each), axes=1)  # (rows, C)
    return Prediction(_mode(values, np.stack(each)) if rule == "mode" else mean.argmax(axis=-1), mean)


def _mode(votes: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
    """Most frequent of votes (models, rows); ties by the sum of probabilities (models, rows, C)."""
    counts = (votes[..., None] == np.arange(probabilities.shape[-1])).sum(axis=0)  # (rows, C)
    tied = counts == counts.max(axis=-1, keepdims=True)
    return np.where(tied, probabilities.sum(axis=0), -np.inf).argmax(axis=-1)


@dataclass(frozen=True)
class Joined:
    """An ensemble: the weights of its members, by their place among the models, and what they predict together."""

    weights: dict[int, float]
    prediction: Prediction


def join(
    predictions: Sequence[Prediction],
    labels: np.ndarray,
    choosing: np.ndarray,
    metric: Metric,
    rule: EnsembleRule,
    best: int = BEST,
    most: int | None = None,
) -> Joined:
    """Join models by their predictions for B rows; :func:`choose` sees those that ``choosing`` (B,) marks alone."""
    weights = choose([each.on(choosing) for each in predictions], labels[choosing], metric, rule, best, most)
    return Joined(weights, combine([predictions[index] for index in weights], list(weights.values()), rule))


def choose(
    predictions: Sequence[Prediction],
    labels: np.ndarray,
    metric: Metric,
    rule: EnsembleRule,
    best: int = BEST,
    most: int | None = None,
) -> dict[int, float]:
    """The weight of each model that takes part, by its place in ``predictions``; they add up to one.

    The choice is made on the rows of ``labels``; ``best`` models take part under ``mode`` and ``median``,
    and under ``mean`` and ``weighted`` at most ``most``.
    """

    def value(weights: dict[int, float]) -> float:
        members = [predictions[index] for index in weights]
        return score(metric, combine(members, list(weights.values()), rule).values, labels)

    # Ties go to the first.
    order = sorted(range(len(predictions)), key=lambda index: -value({index: 1.0}))
    if rule == "uniform":
        return _shares(dict.fromkeys(range(len(predictions)), 1))
    if rule == "mean":
        return _forward(order[: most or len(order)], value)
    return _added(order[: most or len(order)], value) if rule == "weighted" else _shares(dict.fromkeys(order[:best], 1))


def _shares(counts: dict[int, int]) -> dict[int, float]:
    return {index: count / sum(counts.values()) for index, count in counts.items()}


def _forward(order: Sequence[int], value: Callable[[dict[int, float]], float]) -> dict[int, float]:
    weights = {order[0]: 1.0}
    reached = value(weights)
    for index in order[1:]:
        more = _shares(dict.fromkeys([*weights, index], 1))
        if (added := value(more)) >= reached:
            weights, reached = more, added
    return weights


def _added(order: Sequence[int], value: Callable[[dict[int, float]], float]) -> dict[int, float]:
    counts: dict[int, int] = {}
    best: tuple[float, dict[int, float]] = (-np.inf, {})
    for _ in range(ROUNDS):
        tried = [{**counts, index: counts.get(index, 0) + 1} for index in order]
        values = [value(_shares(more)) for more in tried]
        counts = tried[int(np.argmax(values))]
        if max(values) > best[0]:
            best = max(values), _shares(counts)
    return best[1]


def first_half(labels: np.ndarray, seed: int) -> np.ndarray:
    """Which rows to choose on, (rows,) of bool: half of them, with labels as in the other half."""
    order = np.random.default_rng([seed, len(labels)]).permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    chosen = np.zeros(len(labels), dtype=bool)
    chosen[order[::2]] = True
    return chosen
