"""Objectives: from a head's outputs and labels to a loss, and from outputs to predictions.

Loss and prediction stand together because they must agree on scale: what the loss pulls towards is what is predicted.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from pipeline.data.tasks import CosineScale, HeadKind, Task
from pipeline.settings.recipe import Recipe
from pipeline.stats.metrics import Prediction


@dataclass(frozen=True)
class Objective:
    """``loss(outputs, labels)`` is the mean over the batch; ``predict(outputs)`` reads the same outputs (B, k)."""

    loss: Callable[[Tensor, Tensor], Tensor]
    predict: Callable[[Tensor], Prediction]


def objective_for(
    task: Task, head: HeadKind, cosine_scale: CosineScale = "clamped", one_logit: bool = False
) -> Objective:
    """The objective of a task under a head.

    Args:
        cosine_scale: how the cosine head gives a score.
        one_logit: two classes have one logit together; not with the cosine head.
    """
    if task.kind == "classes":
        if head == "cosine":
            return _COSINE_CLASSES
        return _ONE_LOGIT if one_logit else _CLASSES
    assert task.range is not None
    # A shifted cosine is ``low + (high - low) (cos + 1) / 2``, 5 (cos + 1) / 2 for sts (Liu & Shen 2023): the score of
    # any other head, brought to -1..1.
    is_clamped = head == "cosine" and cosine_scale == "clamped"
    return _clamped_cosine(*task.range) if is_clamped else _score(*task.range)


def objective_of(task: Task, recipe: Recipe) -> Objective:
    """The objective of a task under a resolved recipe."""
    assert recipe.head is not None
    return objective_for(task, recipe.head, recipe.cosine_scale, recipe.one_logit)


def _predict_classes(outputs: Tensor) -> Prediction:
    probabilities = outputs.softmax(dim=-1)
    return Prediction(outputs.argmax(dim=-1).numpy(), probabilities.numpy())


_CLASSES = Objective(loss=lambda outputs, labels: F.cross_entropy(outputs, labels), predict=_predict_classes)


def _predict_one_logit(outputs: Tensor) -> Prediction:
    """Class 1 iff its probability is above one half; exactly one half is class 0."""
    positive = outputs.squeeze(-1).sigmoid()
    probabilities = torch.stack([1 - positive, positive], dim=-1)
    return Prediction((positive > 0.5).long().numpy(), probabilities.numpy())


_ONE_LOGIT = Objective(
    loss=lambda outputs, labels: F.binary_cross_entropy_with_logits(outputs.squeeze(-1), labels.to(outputs.dtype)),
    predict=_predict_one_logit,
)
"""Two classes by the Bernoulli loss on one logit (Liu & Shen 2023, Hayes 2024)."""


def cosine_embedding_loss(outputs: Tensor, labels: Tensor) -> Tensor:
    """``1 - cos`` for label 1 and ``max(0, cos)`` for label 0, margin 0 (Xu 2024, section 4.1).

    Labels 0/1 become targets -1/+1 here; PyTorch's own loss is zero, silently, for a target of 0.
    """
    cosine = outputs.squeeze(-1)
    return torch.where(labels == 1, 1 - cosine, cosine.clamp(min=0)).mean()


def _predict_cosine_classes(outputs: Tensor) -> Prediction:
    """Class 1 iff cos > 0; its probability is (1 + cos) / 2, which agrees with that threshold."""
    cosine = outputs.squeeze(-1).numpy()
    # In fp32 the cosine of equal vectors may exceed 1 by rounding.
    positive = ((1 + cosine) / 2).clip(0, 1)
    return Prediction((cosine > 0).astype(np.int64), np.stack([1 - positive, positive], axis=-1))


_COSINE_CLASSES = Objective(loss=cosine_embedding_loss, predict=_predict_cosine_classes)


def _score(low: float, high: float) -> Objective:
    """Squared error on scores brought to -1..1, so that one learning rate fits any range; predictions unclipped."""
    middle, half = (low + high) / 2, (high - low) / 2

    def loss(outputs: Tensor, labels: Tensor) -> Tensor:
        return F.mse_loss(outputs.squeeze(-1), ((labels - middle) / half).to(outputs.dtype))

    return Objective(loss, lambda outputs: Prediction(middle + half * outputs.squeeze(-1).double().numpy(), None))


def _clamped_cosine(low: float, high: float) -> Objective:
    """Squared error of the cosine against the score brought to 0..1 (score / 5 for sts; Xu 2024).

    The cosine is clamped only when predicting, ``low + (high - low) max(0, cos)``: inside the loss it would have no
    gradient for cos < 0.
    """

    def loss(outputs: Tensor, labels: Tensor) -> Tensor:
        return F.mse_loss(outputs.squeeze(-1), ((labels - low) / (high - low)).to(outputs.dtype))

    def predict(outputs: Tensor) -> Prediction:
        return Prediction(low + (high - low) * outputs.squeeze(-1).clamp(min=0).double().numpy(), None)

    return Objective(loss, predict)
