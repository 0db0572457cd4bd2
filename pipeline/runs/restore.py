"""The trained models of finished runs, from the store or from weights beside their records, and what they predict."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from accelerate import Accelerator
from torch import Tensor

from pipeline.data.prediction import Prediction
from pipeline.data.tasks import Task, described
from pipeline.data.tokens import Cut, TokenisedSplit
from pipeline.methods.fusion import load_fusion, use_fusion_implementation
from pipeline.methods.houlsby import load_adapter
from pipeline.methods.layernorms import load_layernorms
from pipeline.methods.parallel import parallel_adapters
from pipeline.methods.registry import load_modules
from pipeline.models.backbone import Backbone
from pipeline.models.rounding import round_for_good
from pipeline.models.switching import activate
from pipeline.models.transfer_model import JointModel, MultitaskModel, TransferModel
from pipeline.records.run_record import RunRecord
from pipeline.records.store import LAYERNORMS, MANIFEST, Artifact
from pipeline.runs.build import assemble, assemble_all, check_meaning, make_lean_for_all, modules_of, outputs_of
from pipeline.runs.request import Part
from pipeline.runs.scoring import splits_of
from pipeline.runs.weights import load_head, load_weights
from pipeline.runs.workspace import Workspace
from pipeline.settings.fields import check_layers
from pipeline.settings.resolve import resolve
from pipeline.system.errors import PipelineError
from pipeline.training.devices import HALF
from pipeline.training.objectives import objective_of
from pipeline.training.predict import Compute, mean_outputs

if TYPE_CHECKING:
    from pipeline.runs.kept_models import Target


def restore(
    trained: Artifact | RunRecord, task: Task, workspace: Workspace, drop_layers: tuple[int, ...] = ()
) -> TransferModel:
    """The model of an artifact, or of a run that kept its weights; frozen, in evaluation mode.

    Args:
        task: the task to answer for, if the model has several.
        drop_layers: layers in which an artifact's modules are left out.

    Raises:
        PipelineError: it is damaged, was trained on another backbone or when the task had another meaning, lacks an
            adapter of its fusion, or no layer keeps its modules.
    """
    if isinstance(trained, RunRecord):
        return restore_weights(trained, [task], workspace).of(task.name)
    manifest, backbone = trained.manifest, workspace.backbone_for(trained.manifest.recipe)
    dropped = _checked(trained, task, backbone, drop_layers)
    encoder = backbone.load()
    own: Collection[str] = ()
    if manifest.kind == "adapter":
        load_modules(encoder, modules_of(trained), dropped)
        if manifest.recipe.bottleneck.train_layernorm:
            own = load_layernorms(encoder, trained.folder / LAYERNORMS, modules_of(trained), dropped)
    else:
        adapters = workspace.store.adapters_of(manifest)
        for adapter in adapters:
            adapter.verify()
        sources = zip(manifest.recipe.form.names_of(manifest.sources), map(modules_of, adapters), strict=True)
        load_fusion(encoder, dict(sources), modules_of(trained), dropped)
        use_fusion_implementation(encoder, manifest.recipe.fusion.implementation)
    backbone.check_and_share(encoder, own)
    model = assemble(encoder, manifest.recipe, task)
    load_head(trained, model.head)
    return model.requires_grad_(False).eval()


def restore_together(
    trained: Sequence[Artifact | RunRecord],
    tasks: Sequence[Task],
    workspace: Workspace,
    drop_layers: tuple[int, ...] = (),
) -> JointModel:
    """One frozen model that answers for several tasks in one forward pass; raises as :func:`restore`.

    Args:
        trained: one per task: adapters at the same sites that read the same inputs, or for all tasks the one jointly
            trained run. The caller must ensure this.
    """
    first = trained[0]
    if isinstance(first, RunRecord):
        whole = restore_weights(first, tasks, workspace)
        return JointModel([whole.of(task.name) for task in tasks], first.recipe.joint.split_layers)
    pairs = [(each, task) for each, task in zip(trained, tasks, strict=True) if isinstance(each, Artifact)]
    backbone = workspace.backbone_for(*(artifact.manifest.recipe for artifact, _ in pairs))
    dropped = [_checked(artifact, task, backbone, drop_layers) for artifact, task in pairs]
    encoder = backbone.load()
    for (artifact, task), layers in zip(pairs, dropped, strict=True):
        load_adapter(encoder, task.name, modules_of(artifact), layers)
    backbone.check_and_share(encoder)
    parallel_adapters(encoder, [task.name for task in tasks])
    models = [assemble(encoder, artifact.manifest.recipe, task) for artifact, task in pairs]
    for (artifact, _), model in zip(pairs, models, strict=True):
        load_head(artifact, model.head)
    make_lean_for_all(encoder, models)
    return JointModel(models).requires_grad_(False).eval()


def restore_weights(record: RunRecord, tasks: Sequence[Task], workspace: Workspace) -> MultitaskModel:
    """The whole model of a run that kept its weights beside its record; see :func:`restore`.

    Args:
        tasks: the wanted tasks, as they are defined now.
    """
    backbone = workspace.backbone_for(*map(record.recipe_of, record.trained_on))
    _check_backbone(record.backbone_weights, record.backbone, backbone, record.run)
    wanted = {task.name: task for task in tasks}
    parts = {}
    for name in record.trained_on:
        # An unwanted task may no longer be described anywhere else; the model does not depend on its columns.
        then = task_of(record, name)
        task = wanted.get(name, then)
        check_meaning(then.meaning, then.is_pair, task, record.run, record.kind)
        parts[name] = Part(task, record.recipe_of(name))
    model = assemble_all(backbone.load(), parts, backbone)
    load_weights(model, record, workspace.ledger)
    return model.requires_grad_(False).eval()


def restore_run(record: RunRecord, task: Task, workspace: Workspace) -> TransferModel:
    """The model of a finished run, frozen, in evaluation mode; if it has several tasks, the one for ``task``.

    Raises:
        PipelineError: the model was not kept, or as :func:`restore`.
    """
    kept: Artifact | RunRecord | None = record
    if record.artifact_digest is not None:
        kept = workspace.store.find_unchanged(record.run, record.artifact_digest)
    elif record.weights_sha256 is None or not workspace.ledger.weights_file(record.run).is_file():
        kept = None
    if kept is None:
        raise PipelineError(f"run {record.run} ({record.kind} {record.task}) kept no model that is still there")
    model = restore(kept, task, workspace)
    if model.task is not None:  # the caller may run the backbone alone, so activate only this task's modules
        activate(model.backbone, model.task)
    return model


def task_of(trained: Artifact | RunRecord, name: str) -> Task:
    """Task ``name`` of a model as its manifest or record describes it, without the task's file or data."""
    if isinstance(trained, Artifact):
        manifest = trained.manifest
        return Task.parse(described(manifest.task, manifest.meaning, manifest.pair), f"run {manifest.run}")
    record = trained
    meaning, pair = record.described(name)["meaning"], bool(record.score(name).pair)
    return Task.parse(described(name, meaning, pair), f"run {record.run}, task '{name}'")


def _checked(artifact: Artifact, task: Task, backbone: Backbone, drop_layers: tuple[int, ...]) -> tuple[int, ...]:
    """The layers without modules (the artifact's own and ``drop_layers``), once the artifact is checked."""
    manifest, recipe = artifact.manifest, artifact.manifest.recipe
    _check_backbone(manifest.backbone_weights, manifest.backbone, backbone, manifest.run)
    check_meaning(manifest.meaning, manifest.pair, task, manifest.run, manifest.kind)
    artifact.verify()
    problem = ""  # why no training can produce this manifest, which may come from anyone
    if recipe.trainable != manifest.kind or None in (recipe.encoding, recipe.pooling, recipe.head, recipe.max_length):
        problem = f"is not a trained {manifest.kind}'s"
    else:
        try:
            resolve(recipe, task, "fp32", backbone.max_length, backbone.layers)
        except PipelineError as error:
            problem = f"cannot be trained: {error}"
    if problem:
        raise PipelineError(f"{artifact.folder / MANIFEST}: damaged: its recipe {problem}: {artifact.remedy}")
    layers = tuple(sorted({*drop_layers, *recipe.adapter.drop_layers}))
    check_layers(layers, backbone.layers)
    return layers


def _check_backbone(weights: str | None, name: str, backbone: Backbone, run: str) -> None:
    if weights != backbone.weights_hash:
        raise PipelineError(
            f"run {run} was trained on backbone '{name}', whose weights are not those of '{backbone.name}': name that"
            " backbone with --backbone"
        )


def predictions_of(
    targets: Sequence[Target],
    rows: pd.DataFrame,
    drop_layers: tuple[int, ...],
    batch_size: int,
    accelerator: Accelerator,
) -> tuple[list[Prediction], Cut]:
    """One prediction per target, from one forward pass over the rows; and how many rows each target cuts."""
    first, workspace, longest = targets[0], targets[0].workspace, targets[0].recipe.max_length
    assert longest is not None  # a trained model's recipe is resolved
    if rows.empty:
        dtypes = {"score": "float64", "classes": "int64", "labels": "U1"}
        nothing = [
            Prediction(np.empty(0, dtypes[task.kind]), np.empty((0, task.outputs)) if task.classes else None)
            for task in (target.task for target in targets)
        ]
        return nothing, Cut(0, longest)
    model: TransferModel | JointModel
    if len(targets) == 1:
        model = restore(first.trained, first.task, workspace, drop_layers)
    else:
        trained, tasks = [each.trained for each in targets], [each.task for each in targets]
        model = restore_together(trained, tasks, workspace, drop_layers)
    round_for_good(model, workspace.backbone.tensor_names, HALF.get(accelerator.mixed_precision))
    inputs = inputs_of(first, rows)
    outputs = head_outputs(accelerator.prepare(model), targets, inputs, batch_size, accelerator)
    # the next pass builds another model
    accelerator.free_memory()
    each = zip(targets, outputs, strict=True)
    predictions = [objective_of(target.task, target.recipe).predict(own) for target, own in each]
    return predictions, Cut(inputs[0].cut_rows, longest)


def inputs_of(target: Target, rows: pd.DataFrame, *, cached: bool = True) -> list[TokenisedSplit]:
    """Canonical rows as the model reads them, in both orders if it averages over the orders of a pair.

    Unless ``cached``, the tokens are not saved to disk.
    """
    tokenizer = target.workspace.backbone.tokenizer
    return splits_of(rows, target.recipe, tokenizer, target.recipe.pairs.average_orders, cached)


def head_outputs(
    model: TransferModel | JointModel,
    targets: Sequence[Target],
    inputs: list[TokenisedSplit],
    batch_size: int,
    compute: Compute,
) -> list[Tensor]:
    """Each target's outputs (B, k) for B rows, computed by its restored ``model``, which is on the device already."""
    outputs = mean_outputs(
        model,
        inputs,
        batch_size=batch_size,
        pad_token_id=targets[0].workspace.backbone.tokenizer.pad_token_id,
        accelerator=compute,
    )
    return list(outputs.split([outputs_of(target.recipe, target.task) for target in targets], dim=-1))
