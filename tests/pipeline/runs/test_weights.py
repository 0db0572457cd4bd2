"""Weights beside a run's record, and whether the two always belong together."""

from typing import Any

import pytest

from pipeline.records.ledger import Ledger
from pipeline.runs import outcome
from pipeline.runs.training_run import TrainingRun
from pipeline.runs.workspace import Workspace
from pipeline.system.atomic import sha256_file
from tests.runs import Stopped, single_run, stop_at


def stop(*_: Any) -> None:
    raise Stopped


def test_a_run_that_is_stopped_between_its_new_weights_and_its_record_resumes(
    workspace: Workspace, quick: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trained again where other weights come of it, as on another machine."""

    def run() -> TrainingRun:
        place = Workspace(str(workspace.backbone_name), workspace.data, workspace.store_root, workspace.reports)
        return single_run(place, "full", "films", quick("full", epochs=1), seed=1, limit=16)

    record, ledger = run().get(), workspace.ledger
    file = ledger.weights_file(record.run)
    file.unlink()
    save = outcome._save
    monkeypatch.setattr(outcome, "_save", lambda tensors, to: save({name: 2 * t for name, t in tensors.items()}, to))
    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "finish", stop)
        with pytest.raises(Stopped):
            run().get()
    assert sha256_file(file) != record.weights_sha256
    assert ledger.find(record.run) is None
    steps = stop_at(monkeypatch, -1)
    finished = run().get()
    assert finished.weights_sha256 == sha256_file(file)
    assert workspace.finished(record.run, with_model=True) == finished
    assert steps == []


def test_a_record_stands_until_new_weights_are_whole(
    workspace: Workspace, quick: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = single_run(workspace, "full", "films", quick("full", epochs=1), seed=1, limit=16).get()
    workspace.ledger.weights_file(record.run).unlink()
    monkeypatch.setattr(outcome, "_save", stop)
    with pytest.raises(Stopped):
        single_run(workspace, "full", "films", quick("full", epochs=1), seed=1, limit=16).get()
    assert workspace.ledger.find(record.run) == record
