"""A task's rows as a model reads them: the batches that it trains on, its scores, and probes.

A linear probe says how well an encoder's features of the training rows explain a task's labels. Before training, probes
choose what a run starts from, the gates of a fusion, and its sources out of many (:mod:`pipeline.runs.initial`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from accelerate import Accelerator
from scipy.stats import mannwhitneyu
from torch import Tensor, nn
from transformers import PreTrainedModel

from pipeline.data.batches import (
    BACKBONE_INPUTS,
    Piece,
    collate,
    evaluation_order,
    padding_worth_a_pass,
    training_batches,
)
from pipeline.data.labels import Prediction
from pipeline.data.split import group_numbers
from pipeline.data.task_data import TaskData
from pipeline.data.tasks import Task
from pipeline.data.tokens import TokenisedSplit, Tokenizer, in_random_order, joined, swapped, tokenise
from pipeline.models.backbone import Backbone
from pipeline.models.transfer_model import (
    CosineHead,
    Features,
    Head,
    MultitaskModel,
    PrefixCache,
    TransferModel,
    pair_features,
)
from pipeline.records.run_record import RunRecord, TaskScore
from pipeline.runs.build import assemble, tunes_threshold
from pipeline.runs.outcome import load_weights
from pipeline.runs.planned import PlannedRun
from pipeline.runs.workspace import Workspace, first_of
from pipeline.settings.recipe import Recipe
from pipeline.stats.metrics import best_threshold, best_threshold_of_labels, score
from pipeline.stats.paired import score_interval
from pipeline.stats.probe import explained_rows, solve
from pipeline.training.devices import on_main_process
from pipeline.training.fit import TrainingData
from pipeline.training.mixing import TaskBatches, mixed
from pipeline.training.objectives import Extend, mean_outputs, objective_of, output_scale
from pipeline.training.progress import Companion, Progress, Scores

MOST_ROWS = 5000
"""Training rows up to which :func:`probe_score` is worth its seconds: with more, training nearly always wins."""


class Scoring:
    """Scores a model of a resolved ``recipe`` on labelled ``rows`` of ``task``: dev, which selects.

    ``test`` scores the test rows the same way, if dev only selects.
    """

    extend: Extend | None = None
    """Adds known layer outputs to a batch."""

    def __init__(
        self,
        task: Task,
        rows: pd.DataFrame,
        recipe: Recipe,
        backbone: Backbone,
        accelerator: Accelerator,
        test: pd.DataFrame | None = None,
    ) -> None:
        self.task, self.rows, self.accelerator = task, rows, accelerator
        self.splits = splits_of(rows, recipe, backbone.tokenizer, recipe.pairs.average_orders)
        self.objective = objective_of(task, recipe)
        self.tunes = tunes_threshold(recipe, task)
        self.reverses = recipe.cosine_similar == "first"
        self._batch_size, self._pad_token_id = 2 * recipe.batch_size, backbone.tokenizer.pad_token_id
        self.test = None if test is None else Scoring(task, test, recipe, backbone, accelerator)

    def predict(self, model: TransferModel) -> Prediction:
        """Predictions for every row; all processes take part and receive them."""
        return self.objective.predict(self._outputs(model))

    def predict_choosing(self, model: TransferModel) -> Prediction:
        """As :meth:`predict`, after tuning the head's threshold on these rows if it has one."""
        outputs = self.choose_threshold(model)
        return self.predict(model) if outputs is None else self.objective.predict(outputs)

    def choose_threshold(self, model: TransferModel) -> Tensor | None:
        """Tune the head's threshold on these rows; returns the model's outputs for them.

        Returns None, without computing anything, if the head has no tuned threshold.
        """
        threshold = getattr(model.head, "threshold", None)
        if not isinstance(threshold, Tensor):
            return None
        threshold.zero_()
        outputs = self._outputs(model)
        labels = self.rows["label"].to_numpy()
        if self.task.kind == "labels":
            chosen = best_threshold_of_labels(outputs.numpy(), labels, self.task.metric)
        else:
            similar = 1 - labels if self.reverses else labels
            chosen = best_threshold(outputs.squeeze(-1).numpy(), similar, self.task.metric)
        threshold.fill_(chosen)
        return outputs - threshold.item()

    def reversed_note(self, model: TransferModel) -> str:
        """Advice if a cosine head would call those pairs similar that are now the less similar ones; else empty.

        Uses the Mann-Whitney test at a level of 0.001, since nobody asked for the check.
        """
        cosine, labels = self._outputs(model).squeeze(-1).double().numpy(), self.rows["label"].to_numpy()
        first, second = cosine[labels == 0], cosine[labels == 1]
        if not (len(first) and len(second)):
            return ""
        higher = "less" if self.reverses else "greater"
        if not mannwhitneyu(first, second, alternative=higher, method="asymptotic").pvalue < 0.001:
            return ""
        wrong, right = self.task.classes if self.reverses else self.task.classes[::-1]
        return (
            f"{self.task.name}: texts of '{right}' are more similar than those of '{wrong}', but a cosine head reads"
            f" '{wrong}' as the class of similar texts: write similar = {json.dumps(right, ensure_ascii=False)} into"
            " its task.toml"
        )

    def _outputs(self, model: TransferModel) -> Tensor:
        return mean_outputs(
            model,
            self.splits,
            batch_size=self._batch_size,
            pad_token_id=self._pad_token_id,
            accelerator=self.accelerator,
            extend=self.extend,
        )

    def value(self, prediction: Prediction) -> float:
        """The task's metric."""
        return score(self.task.metric, prediction.values, self.rows["label"].to_numpy())

    def interval(self, prediction: Prediction) -> tuple[float, float] | None:
        """The 95 % interval of :meth:`value` over other rows; None of a single row."""
        labels = self.rows["label"].to_numpy()
        if len(labels) < 2:
            return None
        return score_interval(self.task.metric, prediction.values, labels, group_numbers(self.rows))

    def scored(self, prediction: Prediction, tested: Prediction | None = None) -> tuple[TaskScore, pd.DataFrame]:
        """The scores of a dev prediction and of a ``test`` prediction, and their table.

        Rows of a split that share texts have the same number in column ``group``. With both splits, column ``split``
        says which one a row is from.
        """
        reached = TaskScore(metric=self.task.metric, dev=self.value(prediction), rows=len(self.rows))
        table = prediction_table(self.rows.assign(group=group_numbers(self.rows)), prediction)
        if self.test is None or tested is None:
            return reached, table
        of_test, test_table = self.test.scored(tested)
        both = {"dev": table, "test": test_table}
        joined = pd.concat([each.assign(split=split) for split, each in both.items()], ignore_index=True)
        return reached.model_copy(update={"test": of_test.dev, "test_rows": of_test.rows}), joined

    def inputs(self) -> Iterator[dict[str, Tensor]]:
        """The backbone's inputs for all rows, in batches of similar length on its device."""
        split = self.splits[0]
        for rows in evaluation_order(split.lengths, self._batch_size):
            batch = collate(split, rows, self._pad_token_id)
            yield {name: batch[name].to(self.accelerator.device) for name in BACKBONE_INPUTS if name in batch}


class Evaluations(Companion):
    """Scores ``model`` for ``fit`` and keeps the predictions, so that the best epoch's need not be made again.

    Whenever dev is scored by ``scorings``, the scorings ``shown`` score training rows, if there are any.
    """

    def __init__(self, model: MultitaskModel, scorings: Mapping[str, Scoring], shown: Mapping[str, Scoring]) -> None:
        self._model, self._scorings, self._shown = model, scorings, shown
        self._kept: list[dict[str, Prediction]] = []

    def __call__(self, _: object) -> Scores:
        """The dev score; for several tasks a dict by task."""
        self._kept.append(self._predict())
        scores = {name: self._scorings[name].value(each) for name, each in self._kept[-1].items()}
        return scores if len(scores) > 1 else next(iter(scores.values()))

    def measured(self) -> dict[str, float | None]:
        """``train_<task>`` for each task with training rows to score."""
        shown = self._shown.items()
        return {f"train_{name}": each.value(each.predict(self._model.of(name))) for name, each in shown}

    def best(self, fitted: Progress) -> dict[str, Prediction]:
        """Predictions at the kept epoch, made again from the kept weights if an earlier process scored that epoch."""
        if any(scoring.tunes for scoring in self._scorings.values()):
            return self._predict()  # the tuned thresholds are of the last epoch, not of the kept one
        number = [point["epoch"] for point in fitted.curve].index(fitted.best_epoch)
        number -= len(fitted.curve) - len(self._kept)
        return self._kept[number] if number >= 0 else self._predict()

    def _predict(self) -> dict[str, Prediction]:
        return {name: scoring.predict_choosing(self._model.of(name)) for name, scoring in self._scorings.items()}


def score_again(
    encoder: PreTrainedModel, start: RunRecord, workspace: Workspace, accelerator: Accelerator
) -> tuple[TaskScore, pd.DataFrame]:
    """Score ``encoder`` on the rows that ``start`` was scored on, with the head from there; also the predictions.

    Args:
        encoder: tuned further after ``start``; it is made lean for the pooling of that task.
    """
    task = workspace.task(start.task)
    data = workspace.splits.of(task, start.own.limit, start.seed)
    scoring = Scoring(task, data.dev, start.recipe, workspace.backbone, accelerator, data.test)
    model = assemble(encoder, start.recipe, task)
    load_weights(model.head, start, workspace.ledger, part="head.")
    model.to(accelerator.device)
    tested = scoring.test.predict(model) if scoring.test is not None else None
    score, table = scoring.scored(scoring.predict(model), tested)
    then = start.described(start.task)["data"]
    same_rows = then.get("test", then["dev"]) == data.scored_fingerprint
    return score.model_copy(update={"before": start.own.value if same_rows else None}), table


def splits_of(
    rows: pd.DataFrame, recipe: Recipe, tokenizer: Tokenizer, both_orders: bool, cached: bool = True
) -> list[TokenisedSplit]:
    """The rows as a resolved ``recipe`` reads them; with ``both_orders`` also with each pair swapped.

    Unless ``cached``, the tokens are not saved to disk.
    """
    assert recipe.encoding is not None and recipe.max_length is not None
    orders = [rows, swapped(rows)] if both_orders else [rows]
    return [
        tokenise(order, tokenizer, recipe.encoding, recipe.max_length, recipe.truncation, cached) for order in orders
    ]


def prediction_table(rows: pd.DataFrame, prediction: Prediction) -> pd.DataFrame:
    """``id``, ``label`` and ``group`` where known, ``prediction``, and ``probability_<its number>`` of classes."""
    table = rows.filter(["id", "label", "group"])
    table["prediction"] = prediction.values
    if prediction.probabilities is None:
        return table
    return table.join(pd.DataFrame(prediction.probabilities, index=table.index).add_prefix("probability_"))


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


class Batching:
    """Makes the batches of each task of ``run``, and mixes them.

    ``splits`` has the training rows of each task; if their order is random, also with each pair the other way round.
    """

    def __init__(self, run: PlannedRun, accelerator: Accelerator) -> None:
        self.parts, self.data, self.accelerator = run.parts, run.data, accelerator
        self.tokenizer, self.seed = run.backbone.tokenizer, run.recipe.shuffle_seed(run.request.seed)
        self.cache_bytes = run.workspace.cache_gb * 2**30  # room for the cached outputs of frozen layers
        self.splits = {
            name: splits_of(self.data[name].train, part.recipe, self.tokenizer, part.recipe.pairs.order == "random")
            for name, part in self.parts.items()
        }

    def training_data(self, model: MultitaskModel, scorings: Mapping[str, Scoring]) -> TrainingData:
        """The training batches.

        With a single task, the outputs of frozen layers are cached: for dev, which ``scorings`` reads after every
        epoch, and if room is left for train.
        """
        extend: Extend | None = None
        if len(self.parts) == 1:
            ((name, part),) = self.parts.items()
            cache = partial(
                PrefixCache,
                model.of(name),
                batch_size=2 * part.recipe.batch_size,
                pad_token_id=self.tokenizer.pad_token_id,
                accelerator=self.accelerator,
            )
            dev = cache(joined(scorings[name].splits), max_bytes=self.cache_bytes)
            scorings[name].extend = dev.extend
            # Rows that are read once are not worth caching, and SMART runs all layers, on perturbed embeddings.
            again = part.recipe.epochs_over(len(self.data[name].train)) > 1 and not part.recipe.smart.weight
            train = cache(joined(self.splits[name]), max_bytes=self.cache_bytes - dev.bytes if again else 0)
            extend = train.extend if train.bytes else None
        batches = {name: self._batches(name, model.of(name), extend) for name in self.parts}
        rows = {name: len(own.train) for name, own in self.data.items()}
        data = mixed(batches, rows, first_of(self.parts).recipe, self.seed)
        return replace(data, scored_rows=sum(len(own.dev) for own in self.data.values()))

    def _batches(self, name: str, model: TransferModel, extend: Extend | None) -> TaskBatches:
        """The batches of one task; ``extend`` adds cached layer outputs to each piece."""
        recipe, splits, accelerator = self.parts[name].recipe, self.splits[name], self.accelerator
        pieces, pad = recipe.gradient_accumulation_steps * accelerator.num_processes, self.tokenizer.pad_token_id
        # What a cache extends keeps its padding.
        worth = model.most_padding if extend is None else padding_worth_a_pass
        most_padding = worth(accelerator.device, recipe.precision)

        def of_pass(epoch: int, first: int) -> Iterator[list[Piece]]:
            split = splits[0] if len(splits) == 1 else in_random_order(splits[0], splits[1], self.seed, epoch)
            size = recipe.batch_size
            for batch in training_batches(split, size, pieces, self.seed, epoch, pad, first, most_padding):
                yield [Piece(part if extend is None else extend(part)) for part in batch]

        return TaskBatches(of_pass, count=recipe.steps_over(len(splits[0])))
