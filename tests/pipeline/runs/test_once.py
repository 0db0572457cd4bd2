"""A run is made once; whoever asks is told whether it was made now or found finished."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pipeline.records.ledger import RunBusy
from pipeline.records.store import Artifact
from pipeline.runs.outcome import Made, get_or_train, save_artifact
from pipeline.runs.workspace import Workspace
from pipeline.system.errors import PipelineError
from tests.pipeline.records.test_ledger import CURVE, PREDICTIONS
from tests.pipeline.records.test_ledger import record as finished_record
from tests.runs import single_run, stop_at


@dataclass
class Run:
    """Its record counts how often it was trained."""

    workspace: Workspace
    name: str = "0123456789ab"
    records: list[int] = field(default_factory=list)
    look: Callable[[], object] = lambda: None
    """Called by each look at what is finished, before it."""

    interrupted: bool = False
    """Whether it is interrupted as soon as it has a checkpoint."""
    resumed: list[bool] = field(default_factory=list)
    """Of each training, whether it began from a checkpoint."""

    def finished(self) -> int | None:
        self.look()
        return self.records[-1] if self.records else None

    def train(self) -> int:
        checkpoint = self.workspace.ledger.checkpoint_file(self.name)
        self.resumed.append(checkpoint.exists())
        if self.interrupted:
            checkpoint.parent.mkdir(exist_ok=True)
            checkpoint.touch()
            raise KeyboardInterrupt
        self.records.append(len(self.records) + 1)
        return self.records[-1]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(Workspace("", None, tmp_path / "store", tmp_path / "reports"))


def test_it_is_new_only_to_the_call_that_trained_it(run: Run) -> None:
    calls = [get_or_train(run), get_or_train(run), get_or_train(run, force=True), get_or_train(run)]
    assert calls == [Made(1, True), Made(1, False), Made(2, True), Made(2, False)]


def test_what_another_command_finishes_between_the_look_and_the_lock_is_not_new(run: Run) -> None:
    looks: list[None] = []

    def look() -> None:
        looks.append(None)
        if len(looks) == 2:
            run.train()

    run.look = look
    assert get_or_train(run) == Made(1, False)


def test_it_is_not_trained_while_another_command_trains_it(run: Run) -> None:
    with run.workspace.ledger.lock(run.name), pytest.raises(RunBusy):
        get_or_train(run)
    assert run.records == []


def test_what_is_trained_again_and_interrupted_resumes_with_force_alone(run: Run) -> None:
    get_or_train(run)
    run.interrupted = True
    with pytest.raises(KeyboardInterrupt):
        get_or_train(run, force=True)
    assert get_or_train(run) == Made(1, False)  # the old record stands
    run.interrupted = False
    assert get_or_train(run, force=True) == Made(2, True)
    assert get_or_train(run, force=True) == Made(3, True)
    assert run.resumed == [False, False, True, False]


def test_with_force_nothing_resumes_that_was_begun_without(run: Run) -> None:
    run.interrupted = True
    with pytest.raises(KeyboardInterrupt):
        get_or_train(run)
    run.interrupted = False
    assert get_or_train(run, force=True) == Made(1, True)
    assert run.resumed == [False, False]


@pytest.mark.parametrize("force", [False, True])
def test_the_way_to_a_lost_model_outlives_commands_that_need_only_the_record(force: bool, run: Run) -> None:
    run.workspace.ledger.finish(finished_record(run.name), CURVE, PREDICTIONS)
    run.interrupted = True
    with pytest.raises(KeyboardInterrupt):
        get_or_train(run)
    assert get_or_train(Run(run.workspace, records=[7])) == Made(7, False)
    assert run.workspace.ledger.checkpoint_file(run.name).exists()
    run.interrupted = False
    assert get_or_train(run, force) == Made(1, True)
    assert run.resumed == [False, not force]
    assert not run.workspace.ledger.checkpoint_file(run.name).parent.exists()


def test_an_adapter_that_lost_a_file_is_trained_again(
    workspace: Workspace, quick: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = single_run(workspace, "adapter", "films", quick("adapter", epochs=1), seed=1, limit=16)
    record = run.get()
    artifact = workspace.adapter_of(record)
    (artifact.folder / "adapter.safetensors").unlink()
    assert workspace.finished(record.run, with_model=False) is not None  # its scores stand
    steps = stop_at(monkeypatch, -1)
    assert run.get().scores == record.scores
    assert steps
    artifact.verify()


def test_files_that_vanish_while_they_are_written_are_one_message(
    workspace: Workspace, quick: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = single_run(workspace, "adapter", "films", quick("adapter", epochs=1), seed=1, limit=16)

    def save(*arguments: Any) -> Artifact:
        artifact = save_artifact(*arguments)
        (artifact.folder / "adapter.safetensors").unlink()
        return artifact

    monkeypatch.setattr("pipeline.runs.training_run.save_artifact", save)
    with pytest.raises(PipelineError):
        run.get()
    monkeypatch.undo()
    assert run.get().run == run.name
