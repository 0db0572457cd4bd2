"""The trained model of a finished run, from the store or from the weights that stand beside its record."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.data.tasks import Task
from pipeline.models.switching import activate
from pipeline.records.ledger import Ledger, RunRecord
from pipeline.records.store import Artifact, Store
from pipeline.system.errors import PipelineError

if TYPE_CHECKING:
    from pipeline.models.backbone import Backbone
    from pipeline.models.transfer_model import TransferModel


def keeps_model(record: RunRecord, store: Store, ledger: Ledger) -> bool:
    """Whether the model that ``record`` describes is still there."""
    if record.artifact_digest is not None:
        found = store.find(record.run)
        return found is not None and found.manifest.digest == record.artifact_digest
    return record.weights_sha256 is not None and ledger.weights_file(record.run).is_file()


def kept_model(record: RunRecord, task: Task, backbone: Backbone, store: Store, ledger: Ledger) -> TransferModel:
    """The model, frozen, in evaluation mode; of several tasks', that of ``task``.

    Raises:
        PipelineError: it was not kept, is damaged, or was trained on another backbone.
    """
    if not keeps_model(record, store, ledger):
        raise PipelineError(f"run {record.run} ({record.kind} {record.task}) kept no model that is still there")
    artifact = store.find(record.run) if record.artifact_digest is not None else None
    model = trained_model(artifact or record, task, backbone, store, ledger)
    if model.task is not None:  # its modules, and no other task's, for who reads the backbone alone
        activate(model.backbone, model.task)
    return model


def trained_model(
    trained: Artifact | RunRecord,
    task: Task,
    backbone: Backbone,
    store: Store,
    ledger: Ledger,
    drop_layers: tuple[int, ...] = (),
) -> TransferModel:
    """The model of an artifact, or of a run that kept its weights; frozen, in evaluation mode.

    Args:
        task: of several tasks' model, the one that is wanted.
        drop_layers: layers of an artifact that are left out.

    Raises:
        PipelineError: it is damaged, or was trained on another backbone or when the task meant something else.
    """
    from pipeline.runs.restore import build_from_artifact, build_from_weights, build_multitask_from_weights

    if isinstance(trained, Artifact):
        return build_from_artifact(trained, task, backbone, store, drop_layers)
    if trained.kind == "multitask":
        return build_multitask_from_weights(trained, [task], backbone, ledger).of(task.name)
    return build_from_weights(trained, task, backbone, ledger)


def task_of(record: RunRecord, name: str, store: Store) -> Task:
    """Task ``name`` of those a run was trained on, as its record describes it: without the task's own file or data."""
    artifact = store.find(record.run) if record.artifact_digest is not None else None
    pair = artifact.manifest.pair if artifact is not None else record.recipe_of(name).encoding == "siamese"
    text = ("text_a", "text_b") if pair else ("text_a",)
    return Task.model_validate({**record.described(name), "text": text, "label": "label"})
