"""A model's outputs: for a whole split, from outputs and labels to a loss and its terms, and to predictions.

Loss and prediction are defined together, in an :class:`Objective`, because they must agree on the scale of the outputs.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeAlias

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor, nn
from torch.nn import functional as F

from pipeline.data.batches import Batch, Piece, collate, evaluation_order, inputs_of, sentences_of
from pipeline.data.labels import Prediction, as_sets
from pipeline.data.tasks import Task
from pipeline.data.tokens import TokenisedSplit
from pipeline.models.transfer_model import JointModel, TransferModel
from pipeline.settings.recipe import Recipe
from pipeline.system.errors import PipelineError
from pipeline.training.devices import OneDevice
from pipeline.training.progress import Companion

# Rows of a siamese split whose sentence vectors are in memory at a time: 200 MB with 768 dimensions.
BLOCK_ROWS = 32_768

Extend = Callable[[Batch], Batch]
Compute: TypeAlias = Accelerator | OneDevice
"""The device and precision to compute in."""

Divergence = Callable[[Tensor, Tensor], Tensor]
"""How far apart two outputs (B, k) of a head are, as the mean over the batch; zero where they are equal."""
Forward = Callable[[Callable[..., Tensor], Piece], Tensor]
"""``forward(model, piece)``: the outputs (B, k) of a model, or of its stand-in, for a piece's rows."""


@dataclass(frozen=True)
class Objective:
    """``loss(outputs, labels)`` is the mean over the rows, of outputs (B, k).

    ``read(outputs)`` is the prediction as a tensor: probabilities (B, C), or scores (B,). ``decide(outputs)`` has the
    predicted classes; None: the prediction is a score. ``divergence`` is Jiang et al. 2020's, section 2.

    With class weights the loss is the mean of ``w[label] * loss`` over the rows, not divided by the weights, so that a
    batch may be cut into pieces.
    """

    loss: Callable[[Tensor, Tensor], Tensor]
    read: Callable[[Tensor], Tensor]
    decide: Callable[[Tensor], np.ndarray] | None
    divergence: Divergence

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
            F.binary_cross_entropy_with_logits,
            torch.sigmoid,
            lambda outputs: as_sets((outputs > 0).numpy()),
            label_divergence,
        )
    if task.kind == "classes":
        if recipe.head == "cosine":
            return _cosine_classes(weights, reverse=recipe.cosine_similar == "first")
        if recipe.one_logit:
            return _one_logit(weights, recipe.label_smoothing)
        class_loss = partial(_class_loss, weights=weights, smoothing=recipe.label_smoothing)
        read = partial(torch.softmax, dim=-1)
        return Objective(class_loss, read, lambda outputs: outputs.argmax(dim=-1).numpy(), class_divergence)
    zero, unit = output_scale(task, recipe)
    # With ``score_loss`` "raw", the square of the cosine's factor: 25 for 5 cos, 6.25 for 5 (cos + 1) / 2.
    weight = unit**2 if recipe.head == "cosine" and recipe.score_loss != "normalised" else 1.0

    def loss(outputs: Tensor, labels: Tensor) -> Tensor:
        error = F.mse_loss(outputs.squeeze(-1), ((labels - zero) / unit).to(outputs.dtype))
        return error if weight == 1 else weight * error

    def score(outputs: Tensor) -> Tensor:
        # ``low + (high - low) max(0, cos)``, 5 max(0, cos) for sts (Xu 2024). Only here: inside the loss a clamped
        # cosine would have no gradient below 0.
        clamped = recipe.head == "cosine" and recipe.cosine_scale == "clamped"
        values = outputs.squeeze(-1)
        return zero + unit * (values.clamp(min=0) if clamped else values)

    divergence: Divergence = squared_error if weight == 1 else partial(squared_error, weight=weight)
    return Objective(loss, score, None, divergence)


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

    return Objective(loss, read, lambda z: (z.squeeze(-1).sigmoid() > 0.5).long().numpy(), class_divergence)


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

    return Objective(loss, read, decide, squared_error)


def class_divergence(one: Tensor, other: Tensor) -> Tensor:
    """Symmetric Kullback-Leibler divergence ``sum_c (p_c - q_c)(z_c - y_c)`` of logits z and y, p and q their softmax.

    A single logit is the Bernoulli case ``(p - q)(z - y)`` with logistic p and q; its softmax would always be 1.
    Each of the two KL terms holds its target fixed, as in the authors' code, so the gradient for z is just ``p - q``
    per row, and that for y its negative. Their code sums over a batch; with a mean, a weight fits any batch size.
    """
    probabilities = (one.sigmoid(), other.sigmoid()) if one.shape[-1] == 1 else (one.softmax(-1), other.softmax(-1))
    apart = (probabilities[0] - probabilities[1]).detach()
    return (apart * (one - other)).sum(dim=-1).mean()


def label_divergence(one: Tensor, other: Tensor) -> Tensor:
    """The Bernoulli case of :func:`class_divergence` for every class, as the mean over the classes."""
    return ((one.sigmoid() - other.sigmoid()).detach() * (one - other)).mean()


def squared_error(one: Tensor, other: Tensor, weight: float = 1.0) -> Tensor:
    """The divergence of scores and cosines, with the ``weight`` that the squared error has in the loss."""
    return weight * (one - other).square().sum(dim=-1).mean()


class Term(Companion, Protocol):
    """A term that a recipe adds to the loss (:mod:`pipeline.training.terms`), with its weight in it.

    It is a companion of training, so it may keep a state.
    """

    passes: int  # what it adds to the cost of a training row: 1 for a forward pass, 2 for a backward pass

    def __call__(self, model: nn.Module, piece: Piece, outputs: Tensor) -> Tensor:
        """The mean over the piece's rows, whose ``outputs`` (B, k) the model has just computed."""


@dataclass(frozen=True)
class Regularised:
    """The training run that terms are added to."""

    recipe: Recipe
    model: nn.Module  # unwrapped, with the weights that training starts from
    forward: Forward  # as the loss runs the model
    divergence: Callable[[str], Divergence]  # of a task, by the name that pieces give it
    encoders: Callable[[str], Sequence[nn.Module]]  # one or two encoders of a task's inputs
    pretrained: Collection[str] | None = None  # names of the pretrained parameters in an encoder; None: all
    without_decay: Collection[str] = ()  # names of parameters whose neutral value is not zero


def mean_outputs(
    model: TransferModel | JointModel,
    splits: Sequence[TokenisedSplit],
    *,
    batch_size: int,
    pad_token_id: int,
    accelerator: Compute,
    extend: Extend | None = None,
) -> Tensor:
    """The outputs of ``model`` (rows, k), in the order of the rows; a :class:`PipelineError` if one is not finite.

    Batches hold inputs of similar length. Each distinct sentence of a siamese split is encoded once, padded to the
    length of such sentences, not of its pair. Each process takes its share of the batches; all get the whole result.

    Args:
        splits: variants of the same rows, such as both orders of pairs; their outputs are averaged.
        extend: may add cached outputs to a batch (:class:`PrefixCache`).
    """
    if model.training:  # eval() visits all modules, which takes half as long as encoding a short text
        model.eval()

    def encode(part: TokenisedSplit, rows: np.ndarray) -> Tensor:
        batch = collate(part, rows, pad_token_id)
        batch = batch if extend is None else extend(batch)
        inputs = {name: tensor.to(accelerator.device) for name, tensor in inputs_of(batch).items()}
        # Mixed precision belongs to `forward`, which is not called here.
        with accelerator.autocast():
            return model.encode(**inputs)

    def siamese(split: TokenisedSplit, rows: np.ndarray) -> Tensor:
        sentences, pairs = sentences_of(split, rows)
        vectors = _in_order(
            lambda some: encode(sentences, some).float().cpu(), sentences.lengths, 2 * batch_size, accelerator
        )
        # Only the heads remain to run: on first and second sentences as two columns, cut into batches of rows.
        columns = torch.from_numpy(pairs).view(2, -1).split(batch_size, dim=1)
        return torch.cat([model.decide(vectors[c.flatten()].to(accelerator.device)).cpu() for c in columns])

    def outputs_for(split: TokenisedSplit) -> Tensor:
        if split.b is None:
            return _in_order(
                lambda rows: model.decide(encode(split, rows)).cpu(), split.lengths, batch_size, accelerator
            )
        starts = range(0, len(split), BLOCK_ROWS)
        return torch.cat([siamese(split, np.arange(i, min(i + BLOCK_ROWS, len(split)))) for i in starts])

    with torch.inference_mode():
        first, *others = (outputs_for(split) for split in splits)
        outputs = torch.stack([first, *others]).mean(dim=0) if others else first
    if not torch.isfinite(outputs).all():
        raise PipelineError(
            "the model's outputs are no longer finite numbers; lower --learning-rate or use --precision fp32"
        )
    return outputs


def _in_order(
    compute: Callable[[np.ndarray], Tensor], lengths: np.ndarray, batch_size: int, accelerator: Compute
) -> Tensor:
    """``compute(rows)`` over batches of similar length, split over the processes; results by row."""
    mine = evaluation_order(lengths, batch_size)[accelerator.process_index :: accelerator.num_processes]
    parts = [(torch.from_numpy(rows), compute(rows)) for rows in mine]
    if accelerator.num_processes > 1:
        parts = gather_object(parts)
    values = torch.cat([part for _, part in parts])
    restored = torch.empty_like(values)
    restored[torch.cat([rows for rows, _ in parts])] = values
    return restored
