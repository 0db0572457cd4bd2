"""The trained model of a finished run, from the store or from the weights that stand beside its record."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.errors import PipelineError
from pipeline.ledger import Ledger, RunRecord
from pipeline.models.adaptation.switching import activate
from pipeline.store import Store
from pipeline.tasks import Task

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
    from stages.build import build_from_artifact, build_from_weights, build_multitask_from_weights

    if not keeps_model(record, store, ledger):
        raise PipelineError(f"run {record.run} ({record.kind} {record.task}) kept no model that is still there")
    if record.kind == "multitask":
        model = build_multitask_from_weights(record, [task], backbone, ledger).of(task.name)
        if model.task is not None:  # its modules, and no other task's, for who reads the backbone alone
            activate(model.backbone, model.task)
        return model
    if record.artifact_digest is None:
        return build_from_weights(record, task, backbone, ledger)
    artifact = store.find(record.run)
    assert artifact is not None
    return build_from_artifact(artifact, task, backbone, store)


def task_of(record: RunRecord, store: Store) -> Task:
    """The task of a run as its record tells it, for use of its model without the task's own file or data."""
    artifact = store.find(record.run) if record.artifact_digest is not None else None
    pair = artifact.manifest.pair if artifact is not None else record.recipe.encoding == "siamese"
    text = ("text_a", "text_b") if pair else ("text_a",)
    return Task.model_validate({**record.described(record.task), "text": text, "label": "label"})
