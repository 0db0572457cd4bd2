"""Ensembles from saved predictions: select members, weight them, and combine what they predict.

- ``mean``: mean of the unrounded predictions (class probabilities or scores). One forward pass over the models, best
  first, adds a model if the score does not fall (Hayes 2024).
- ``uniform``: mean of all models, without selection. It is safer when there are few rows to select on.
- ``weighted``: mean weighted by how often a model was added. Every round adds the model that does best with those
  already there, possibly one of them again (Caruana et al. 2004).
- ``mode``: the class that most of the best members predict; ties go to the largest sum of probabilities, where
  ``torch.mode`` would take the smallest label (Wang 2024 leaves ties open).
- ``median``: median score of the best members; for an even number the mean of the middle two, where ``torch.median``
  would give the lower.
"""

from collections.abc import Callable, Sequence

import numpy as np

from pipeline.data.labels import EnsembleRule, Metric, Prediction, are_sets, as_matrix, as_sets
from pipeline.stats.metrics import score

BEST = 5  # members of ``mode`` and ``median``, as in Wang 2024
ROUNDS = 50  # additions under ``weighted``; a model added twice counts twice


def combine(predictions: Sequence[Prediction], weights: Sequence[float], rule: EnsembleRule) -> Prediction:
    """The ensemble's prediction; ``weights`` are positive and add up to one. A single model's prediction is unchanged.

    Class probabilities are the weighted mean under every rule, so under ``mode`` the predicted class need not be the
    most probable one.
    """
    if len(predictions) == 1:
        return predictions[0]
    values = np.stack([prediction.values for prediction in predictions])  # (models, rows)
    # fp64 keeps sums independent of their order.
    each = [p.probabilities.astype(np.float64) for p in predictions if p.probabilities is not None]
    if not each:
        return Prediction(np.median(values, axis=0) if rule == "median" else np.asarray(weights) @ values, None)
    mean = np.tensordot(np.asarray(weights), np.stack(each), axes=1)  # (rows, C)
    if are_sets(values):
        votes = as_matrix(values).mean(axis=0) if rule == "mode" else mean
        return Prediction(as_sets(np.where(votes == 0.5, mean, votes) > 0.5), mean)
    if rule != "mode":
        return Prediction(mean.argmax(axis=-1), mean)
    counts = (values[..., None] == np.arange(mean.shape[-1])).sum(axis=0)  # (rows, C)
    tied = counts == counts.max(axis=-1, keepdims=True)
    return Prediction(np.where(tied, np.sum(each, axis=0), -np.inf).argmax(axis=-1), mean)


def choose(
    predictions: Sequence[Prediction],
    labels: np.ndarray,
    metric: Metric,
    rule: EnsembleRule,
    best: int = BEST,
    most: int | None = None,
) -> dict[int, float]:
    """The weight of every member, by its index in ``predictions``; weights add up to one.

    Members are selected on the rows of ``labels``: the ``best`` models under ``mode`` and ``median``, and at most
    ``most`` models under ``mean`` and ``weighted``.
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
    counts, rounds = dict[int, int](), list[tuple[float, dict[int, float]]]()
    for _ in range(ROUNDS):
        tried = [{**counts, index: counts.get(index, 0) + 1} for index in order]
        values = [value(_shares(more)) for more in tried]
        counts = tried[int(np.argmax(values))]
        rounds.append((max(values), _shares(counts)))
    return max(rounds, key=lambda reached: reached[0])[1]  # the first of the best


def first_half(labels: np.ndarray, seed: int) -> np.ndarray:
    """Mask (rows,) of the rows to select on: half of them, with the same distribution of labels as the other half."""
    order = np.random.default_rng([seed, len(labels)]).permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    chosen = np.zeros(len(labels), dtype=bool)
    chosen[order[::2]] = True
    return chosen
