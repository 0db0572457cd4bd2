"""This project's side of a comparison, built and trained by the code of real runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from pipeline.data.batches import Piece, inputs_of, training_batches
from pipeline.data.tasks import Task
from pipeline.data.tokens import TokenisedSplit
from pipeline.methods.registry import add_modules
from pipeline.models.backbone import Backbone
from pipeline.models.transfer_model import TransferModel, build_head
from pipeline.records.store import Artifact, Manifest, Store
from pipeline.runs.build import Built, build_for_training
from pipeline.runs.outcome import save_artifact
from pipeline.runs.training_run import TrainingRun
from pipeline.runs.workspace import RunRequest, Workspace
from pipeline.settings.recipe import Recipe
from pipeline.training.devices import make_accelerator
from pipeline.training.fit import TrainingData, fit
from pipeline.training.objectives import objective_of
from pipeline.training.progress import Progress

from .setting import Setting

if TYPE_CHECKING:
    from pipeline.settings.kinds import Method


def make_run(
    setting: Setting, kind: Method, backbone: Path, *, task: str = "sst", adapters: int = 0, **recipe: Any
) -> TrainingRun:
    """A run as the command line makes it; a fusion is over ``adapters`` random adapters. See Recipe for the rest."""
    workspace = Workspace(str(backbone), setting.data, setting.scratch / "store" / backbone.name, setting.scratch)
    values = {"trainable": kind, "bottleneck": setting.bottleneck, "precision": "fp32", **recipe}
    sources = random_adapters(setting, workspace.backbone, workspace.store, adapters)
    return TrainingRun(
        RunRequest.single(kind, workspace.task(task), Recipe.parse(values, kind), 0, adapters=sources), workspace
    )


def random_adapters(setting: Setting, backbone: Backbone, store: Store, count: int) -> tuple[Artifact, ...]:
    """The first ``count`` untrained Houlsby adapters of this store; missing ones are created."""
    return tuple(random_adapter(setting, backbone, store, source_task(number), number) for number in range(count))


def source_task(number: int) -> Task:
    """The task of adapter ``number``: one text and five classes, like SST."""
    name, classes = f"source{number}", tuple("abcde")
    return Task(name=name, kind="classes", text=("sentence",), label="label", classes=classes, metric="accuracy")


def random_adapter(
    setting: Setting, backbone: Backbone, store: Store, task: Task, number: int, dev: float = 0.0
) -> Artifact:
    """The untrained Houlsby adapter ``number``, with a fixed run name and weights; created if missing."""
    if (found := store.find(run_of(number))) is not None:
        return found
    recipe = Recipe(
        trainable="adapter",
        bottleneck=setting.bottleneck,
        encoding="cross",
        pooling="mean",
        head="linear",
        max_length=128,
    )
    manifest = manifest_of(number, task, recipe, backbone, seed=number, dev=dev)
    torch.manual_seed(number)
    encoder = backbone.load()
    add_modules(encoder, [task.name], recipe)
    head = build_head("linear", backbone.hidden_size, task.outputs, 1, 0.0)
    return save_artifact(store, manifest, TransferModel(encoder, head, "cross", "mean"))


def run_of(number: int) -> str:
    """The name of the run of adapter ``number``."""
    return f"{number:012x}"


def manifest_of(number: int, task: Task, recipe: Recipe, backbone: Backbone, **values: Any) -> Manifest:
    """The manifest of adapter ``number`` with ``values``; nothing depends on the rest."""
    return Manifest(
        kind="adapter",
        task=task.name,
        run=run_of(number),
        limit=None,
        recipe=recipe,
        train_rows="",
        pair=task.is_pair,
        meaning=task.meaning,
        metric=task.metric,
        dev_rows=100,
        dev_fingerprint="",
        backbone=backbone.name,
        backbone_weights=backbone.weights_hash,
        **values,
    )


def build(run: TrainingRun) -> Built:
    """A fresh model for a run."""
    return build_for_training(run.request, run.parts, run.backbone, run.workspace.ledger)


def loss_of(run: TrainingRun) -> Any:
    """``loss(model, piece)`` as :func:`pipeline.training.fit.fit` takes it."""
    assert run.recipe.head is not None
    objective = objective_of(run.task, run.recipe)
    return lambda model, piece: objective.loss(model(run.task.name, **inputs_of(piece.batch)), piece.batch["labels"])


def train_epoch(run: TrainingRun, split: TokenisedSplit) -> Progress:
    """Train a fresh model for one epoch with the real loop, without evaluation."""
    built, recipe = build(run), run.recipe
    accelerator = make_accelerator(recipe.precision)
    most_padding = built.model.of(run.task.name).most_padding(accelerator.device, recipe.precision)
    return fit(
        built.model,
        recipe=recipe,
        seed=0,
        data=TrainingData(
            lambda epoch, first: (
                [Piece(batch) for batch in pieces]
                for pieces in training_batches(
                    split, recipe.batch_size, 1, 0, epoch, run.backbone.tokenizer.pad_token_id, first, most_padding
                )
            ),
            batches_per_epoch=recipe.steps_over(len(split)),
            epochs=1,
        ),
        loss=loss_of(run),
        evaluate=lambda model: 0.0,
        metric=run.task.metric,
        accelerator=accelerator,
        title=run.title,
        penalties=built.penalties,
        without_decay=built.without_decay,
    )


def source_folders(run: TrainingRun) -> dict[str, Path]:
    """The folders of a fusion's adapters, by name, for AdapterHub to load."""
    return {artifact.manifest.task: artifact.folder for artifact in run.request.adapters}
