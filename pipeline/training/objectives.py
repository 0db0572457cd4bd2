"""Objectives: from a head's outputs and labels to a loss, and from outputs to predictions.

Loss and prediction are defined together because they must agree on the scale of the outputs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from pipeline.data.label_sets import as_sets
from pipeline.data.prediction import Prediction
from pipeline.data.tasks import Task
from pipeline.settings.recipe import Recipe


@dataclass(frozen=True)
class Objective:
    """``loss(outputs, labels)`` is the mean over the rows, of outputs (B, k).

    ``read(outputs)`` is the prediction as a tensor: probabilities (B, C), or scores (B,). ``decide(outputs)`` has the
    predicted classes; None: the prediction is a score.

    With class weights the loss is the mean of ``w[label] * loss`` over the rows, not divided by the weights, so that a
    batch may be cut into pieces.
    """

    loss: Callable[[Tensor, Tensor], Tensor]
    read: Callable[[Tensor], Tensor]
    decide: Callable[[Tensor], np.ndarray] | None

    def predict(self, outputs: Tensor) -> Prediction:
        """The predictions for ``outputs`` (B, k), which are on the CPU."""
        if self.decide is None:
            return Prediction(self.read(outputs.double()).numpy(), None)
        return Prediction(self.decide(outputs), self.read(outputs).numpy())


def objective_of(task: Task, recipe: Recipe, weights: Tensor | None = None) -> Objective:
    """The objective of a task under a resolved recipe.

    Args:
        weights: the weight of each class in the loss, (k,); None: 1.
    """
    if task.kind == "labels":
        # The mean over rows and classes. The head has subtracted its threshold, so that 0 separates.
        return Objective(
            F.binary_cross_entropy_with_logits, torch.sigmoid, lambda outputs: as_sets((outputs > 0).numpy())
        )
    if task.kind == "classes":
        if recipe.head == "cosine":
            return _cosine_classes(weights, reverse=recipe.cosine_similar == "first")
        if recipe.one_logit:
            return _one_logit(weights, recipe.label_smoothing)
        class_loss = partial(_class_loss, weights=weights, smoothing=recipe.label_smoothing)
        return Objective(class_loss, partial(torch.softmax, dim=-1), lambda outputs: outputs.argmax(dim=-1).numpy())
    zero, unit = output_scale(task, recipe)
    weight = loss_scale(task, recipe)

    def loss(outputs: Tensor, labels: Tensor) -> Tensor:
        error = F.mse_loss(outputs.squeeze(-1), ((labels - zero) / unit).to(outputs.dtype))
        return error if weight == 1 else weight * error

    def read(outputs: Tensor) -> Tensor:
        # ``low + (high - low) max(0, cos)``, 5 max(0, cos) for sts (Xu 2024). Only here: inside the loss a clamped
        # cosine would have no gradient below 0.
        clamped = recipe.head == "cosine" and recipe.cosine_scale == "clamped"
        values = outputs.squeeze(-1)
        return zero + unit * (values.clamp(min=0) if clamped else values)

    return Objective(loss, read, None)


def output_scale(task: Task, recipe: Recipe) -> tuple[float, float]:
    """The score that an output of 0 means, and how much one unit of output adds to it.

    Scores are scaled to -1..1, so that one learning rate fits any range. A shifted cosine is such an output: ``low +
    (high - low) (cos + 1) / 2``, 5 (cos + 1) / 2 for sts (Liu & Shen 2023). With ``score_loss`` "raw" a head with
    weights outputs the score itself, as in the four reports.
    """
    assert task.range is not None
    low, high = task.range
    if recipe.head != "cosine" and recipe.score_loss == "raw":
        return 0.0, 1.0
    if recipe.head == "cosine" and recipe.cosine_scale == "clamped":
        return low, high - low
    return (low + high) / 2, (high - low) / 2


def loss_scale(task: Task, recipe: Recipe) -> float:
    """The weight of the squared error of a score in the loss.

    For a cosine with ``score_loss`` "raw" it is the square of the cosine's factor: 25 for 5 cos, 6.25 for
    5 (cos + 1) / 2. Otherwise it is 1.
    """
    if task.kind != "score" or recipe.head != "cosine" or recipe.score_loss == "normalised":
        return 1.0
    return output_scale(task, recipe)[1] ** 2


def balanced_weights(labels: np.ndarray, classes: int) -> Tensor:
    """Weights (classes,) by inverse frequency: ``rows / (classes that occur * rows of the class)``.

    Their mean over the rows is 1, so learning rates keep their meaning. A class that does not occur has weight 1.

    Args:
        labels: the training rows' classes, int (rows,).
    """
    counts = torch.from_numpy(np.bincount(labels, minlength=classes))
    here = counts > 0
    return torch.where(here, len(labels) / (here.sum() * counts.clamp(min=1)), 1.0)


def _class_loss(outputs: Tensor, labels: Tensor, weights: Tensor | None, smoothing: float) -> Tensor:
    """Cross entropy with label smoothing (Szegedy et al. 2016); its uniform part is class-weighted, as in PyTorch."""
    if weights is None:
        return F.cross_entropy(outputs, labels, label_smoothing=smoothing)
    total = F.cross_entropy(outputs, labels, weights.to(outputs), label_smoothing=smoothing, reduction="sum")
    return total / len(labels)


def _one_logit(weights: Tensor | None, smoothing: float) -> Objective:
    """The Bernoulli loss on one logit z (Liu & Shen 2023, Hayes 2024): cross entropy of two logits, 0 and z.

    Class 1 iff its probability is above one half; exactly one half is class 0.
    """

    def loss(outputs: Tensor, labels: Tensor) -> Tensor:
        if weights is None and not smoothing:
            return F.binary_cross_entropy_with_logits(outputs.squeeze(-1), labels.to(outputs.dtype))
        return _class_loss(torch.cat([torch.zeros_like(outputs), outputs], dim=-1), labels, weights, smoothing)

    def read(outputs: Tensor) -> Tensor:
        positive = outputs.squeeze(-1).sigmoid()
        return torch.stack([1 - positive, positive], dim=-1)

    return Objective(loss, read, lambda outputs: (outputs.squeeze(-1).sigmoid() > 0.5).long().numpy())


def _cosine_classes(weights: Tensor | None, reverse: bool) -> Objective:
    """The objective for two classes told apart by a cosine; with ``reverse``, similar texts are the first class.

    The loss is ``1 - cos`` for similar texts and ``max(0, cos)`` for others, margin 0 (Xu 2024, section 4.1). They are
    similar iff cos > 0; the probability of that is (1 + cos) / 2, which agrees with the threshold.
    """

    def loss(outputs: Tensor, labels: Tensor) -> Tensor:
        # Not PyTorch's own loss, which is zero, silently, for a label of 0.
        cosine = outputs.squeeze(-1)
        losses = torch.where(labels == (0 if reverse else 1), 1 - cosine, cosine.clamp(min=0))
        return (losses if weights is None else losses * weights.to(outputs)[labels]).mean()

    def read(outputs: Tensor) -> Tensor:
        # In fp32 the cosine of equal vectors may exceed 1 by rounding.
        similar = ((1 + outputs.squeeze(-1)) / 2).clamp(0, 1)
        return torch.stack([similar, 1 - similar] if reverse else [1 - similar, similar], dim=-1)

    def decide(outputs: Tensor) -> np.ndarray:
        similar = outputs.squeeze(-1) > 0
        return (~similar if reverse else similar).long().numpy()

    return Objective(loss, read, decide)
