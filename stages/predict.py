"""Predictions of a trained model for rows without labels."""

from __future__ import annotations

from pathlib import Path

from pipeline.data.load import canonical_rows
from pipeline.data.tables import check_suffix, read_table, write_table
from pipeline.data.tokens import tokenise
from pipeline.errors import PipelineError
from pipeline.layers import layers_option
from pipeline.models.transfer_model import TransferModel
from pipeline.recipe import Precision, Recipe
from pipeline.store import Artifact
from pipeline.tasks import Task
from stages.run import prediction_table
from stages.workspace import Workspace


def predict(
    target: str,
    input_file: Path,
    output_file: Path,
    workspace: Workspace,
    *,
    using: str,
    batch_size: int,
    precision: Precision,
    drop_layers: str | None = None,
) -> dict[str, object]:
    """Write one prediction for each input row, in the input's order, under the input's ids.

    Args:
        using: ``auto`` (the best fusion, else the best adapter), ``fusion``, ``adapter``, or the name of a run.
        drop_layers: layers whose adapters or fusion are left out, such as ``0-4``: faster, without training anew.

    Raises:
        PipelineError: no such model, unfit rows, or a file that cannot be read or written.
    """
    from pipeline.training.devices import make_accelerator, resolve_precision
    from pipeline.training.objectives import objective_for
    from pipeline.training.predict import predict_split

    if batch_size < 1:
        raise PipelineError(f"--batch-size {batch_size}: give at least 1")
    check_suffix(output_file)
    task = workspace.task(target)
    rows = canonical_rows(task, read_table(input_file), str(input_file), source=None, labelled=False)
    model, recipe, run = _model(task, using, workspace, layers_option(drop_layers))
    assert recipe.encoding is not None and recipe.max_length is not None and recipe.head is not None
    tokenizer = workspace.backbone.tokenizer
    accelerator = make_accelerator(resolve_precision(precision))
    prediction = predict_split(
        accelerator.prepare(model),
        tokenise(rows, tokenizer, recipe.encoding, recipe.max_length),
        objective_for(task, recipe.head),
        batch_size=batch_size,
        pad_token_id=tokenizer.pad_token_id,
        accelerator=accelerator,
    )
    if accelerator.is_main_process:
        write_table(prediction_table(rows, prediction), output_file)
    return {"run": run, "task": task.name, "rows": len(rows), "output": str(output_file)}


def _model(
    task: Task, using: str, workspace: Workspace, drop_layers: tuple[int, ...]
) -> tuple[TransferModel, Recipe, str]:
    from stages.build import build_from_artifact, build_from_weights

    artifact = _artifact(task, using, workspace)
    if artifact is not None:
        model = build_from_artifact(artifact, task, workspace.backbone, workspace.store, drop_layers)
        return model, artifact.manifest.recipe, artifact.manifest.run
    record = workspace.ledger.find(using)
    if record is None:
        raise PipelineError(f"no run {using} in {workspace.store_root} or {workspace.ledger.root}")
    if record.task != task.name:
        raise PipelineError(f"run {using} was trained for '{record.task}', not '{task.name}'")
    if drop_layers:
        raise PipelineError(f"--drop-layers: run {using} ({record.kind}) has no adapters to leave out")
    if record.weights_sha256 is None:
        raise PipelineError(f"run {using} ({record.kind}) kept no model: adapters, fusions, full and head-only runs do")
    return build_from_weights(record, task, workspace.backbone, workspace.ledger), record.recipe, record.run


def _artifact(task: Task, using: str, workspace: Workspace) -> Artifact | None:
    """The artifact ``using`` means; None if it names a run outside the store."""
    if using not in ("auto", "fusion", "adapter"):
        artifact = workspace.store.find(using)
        if artifact is not None and artifact.manifest.task != task.name:
            raise PipelineError(f"run {using} was trained for '{artifact.manifest.task}', not '{task.name}'")
        return artifact
    kinds = ("fusion", "adapter") if using == "auto" else (using,)
    artifacts = workspace.store.artifacts()
    ours = [a for a in artifacts if a.manifest.task == task.name and a.manifest.kind in kinds]
    here = {a.manifest.run: a.manifest.digest for a in artifacts}
    fitting = [
        a
        for a in ours
        if a.manifest.backbone_weights == workspace.backbone.weights_hash
        and all(here.get(source.run) == source.digest for source in a.manifest.sources)
    ]
    for kind in kinds:
        candidates = [a for a in fitting if a.manifest.kind == kind]
        if candidates:
            return max(candidates, key=lambda a: (a.manifest.dev, a.manifest.run))
    what = " or ".join(kinds)
    if ours:
        names = ", ".join(sorted({a.manifest.backbone for a in ours}))
        raise PipelineError(
            f"no {what} for '{task.name}' fits backbone '{workspace.backbone_name}' and has all its adapters here;"
            f" those in {workspace.store_root} were trained on {names}: name that with --backbone"
        )
    raise PipelineError(
        f"no {what} for '{task.name}' in {workspace.store_root}: train one with"
        f" python -m pipeline {'fuse --target' if using == 'fusion' else 'extract --task'} {task.name}"
    )
