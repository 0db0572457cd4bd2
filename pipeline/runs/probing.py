"""Linear probes: how well an encoder's features of the training rows explain a task's labels.

Before training they choose what a run starts from, the gates of a fusion, and its sources out of many
(:mod:`pipeline.runs.initial`).
"""

import time
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from accelerate import Accelerator
from torch import Tensor, nn
from transformers import PreTrainedModel

from pipeline.data.task_data import TaskData
from pipeline.data.tasks import Task
from pipeline.models.backbone import Backbone
from pipeline.models.heads import CosineHead, Features, Head, pair_features
from pipeline.models.transfer_model import TransferModel
from pipeline.runs.build import assemble
from pipeline.runs.scoring import Scoring, splits_of
from pipeline.settings.recipe import Recipe
from pipeline.stats.probe import explained_rows, solve
from pipeline.training.objectives import output_scale
from pipeline.training.predict import mean_outputs
from pipeline.training.process_group import on_main_process

MOST_ROWS = 5000
"""Training rows up to which :func:`probe_score` is worth its seconds: with more, training nearly always wins."""


def probe(features: np.ndarray, task: Task, rows: pd.DataFrame) -> np.ndarray:
    """:func:`pipeline.stats.probe.explained_rows` of ``features``, (rows, features), for the labels of ``rows``.

    All processes take the main process's result. If they broke a near tie differently, they could train unlike models.
    """
    classes = len(task.classes) or None
    return on_main_process(lambda: explained_rows(features, rows["label"].to_numpy(), classes))


class _Features(nn.Module):
    """Stands in for a head with weights and returns what that head would read."""

    def __init__(self, features: Features) -> None:
        super().__init__()
        self._features = features

    def forward(self, *vectors: Tensor) -> Tensor:
        return self._features(*vectors)


def _difference(u: Tensor, v: Tensor | None = None) -> Tensor:
    return u if v is None else pair_features(u, v)


def features_of(
    encoder: PreTrainedModel,
    recipe: Recipe,
    rows: pd.DataFrame,
    backbone: Backbone,
    accelerator: Accelerator,
    features: Features = _difference,
) -> np.ndarray:
    """The head's inputs for ``rows`` from ``encoder``, (rows, features): sentence vectors, or the cosine of two.

    Args:
        recipe: resolved for the task of the rows.
    """
    assert recipe.encoding is not None and recipe.pooling is not None
    head = CosineHead() if recipe.head == "cosine" else _Features(features)
    vectors = mean_outputs(
        TransferModel(encoder, head, recipe.encoding, recipe.pooling).to(accelerator.device),
        splits_of(rows, recipe, backbone.tokenizer, both_orders=False),
        batch_size=2 * recipe.batch_size,
        pad_token_id=backbone.tokenizer.pad_token_id,
        accelerator=accelerator,
    )
    return vectors.numpy()


def solve_head(
    model: TransferModel, task: Task, recipe: Recipe, rows: pd.DataFrame, backbone: Backbone, accelerator: Accelerator
) -> None:
    """Set the linear head of ``model`` to the weights that :func:`pipeline.stats.probe.solve` finds on training rows.

    Args:
        recipe: resolved; its head is linear.
    """
    head = model.head
    assert isinstance(head, Head)
    vectors = features_of(model.backbone, recipe, rows, backbone, accelerator, head.features)
    labels, is_score = rows["label"].to_numpy(), task.kind == "score"
    if is_score:
        zero, unit = output_scale(task, recipe)
        labels = (labels - zero) / unit
    classes, balanced = None if is_score else len(task.classes), recipe.class_weights == "balanced"
    weight, bias = on_main_process(lambda: solve(vectors, labels, classes, balanced))
    if recipe.one_logit:
        weight, bias = weight[1:] - weight[:1], bias[1:] - bias[:1]
    with torch.no_grad():
        head.out.weight.copy_(torch.from_numpy(weight))
        head.out.bias.copy_(torch.from_numpy(bias))


class ProbeScore(NamedTuple):
    """The score of regression on the frozen backbone's vectors, on the rows that a run was trained and scored on."""

    dev: float
    seconds: float


def probe_score(task: Task, data: TaskData, recipe: Recipe, backbone: Backbone, accelerator: Accelerator) -> ProbeScore:
    """The dev score of a solved probe; equals that of a row of kind ``probe``.

    Args:
        recipe: a probe's, resolved for ``task``.
    """
    started = time.perf_counter()
    model = solved_probe(task, data.train, recipe, backbone, accelerator)
    scoring = Scoring(task, data.dev, recipe, backbone, accelerator)
    return ProbeScore(scoring.value(scoring.predict_choosing(model)), time.perf_counter() - started)


def solved_probe(
    task: Task, train: pd.DataFrame, recipe: Recipe, backbone: Backbone, accelerator: Accelerator
) -> TransferModel:
    """The frozen backbone with a head that is solved on ``train``; see :func:`probe_score`."""
    model = assemble(backbone.load().requires_grad_(False), recipe, task).to(accelerator.device)
    solve_head(model, task, recipe, train, backbone, accelerator)
    return model
