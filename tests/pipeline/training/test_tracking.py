"""Trackers get the settings and the curve of a run, under its title; one that cannot be had is told at once."""

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.records.run_record import RunRecord
from pipeline.runs.workspace import Workspace
from pipeline.settings.recipe import Recipe
from pipeline.system.errors import PipelineError
from tests.runs import single_run

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:mlflow.*"),
    pytest.mark.filterwarnings("ignore::FutureWarning:mlflow.*"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
Train = Callable[..., RunRecord]


@pytest.fixture
def train(workspace: Workspace, quick: Callable[..., Recipe]) -> Train:
    def run(tracker: str, **values: Any) -> RunRecord:
        tracked = dataclasses.replace(workspace, track=tracker)
        return single_run(tracked, "frozen", "films", quick("head", **values), seed=0).get()

    return run


def curve(workspace: Workspace, record: RunRecord) -> list[float]:
    return [float(point) for point in workspace.ledger.curve(record.run)["dev"]]


def test_tensorboard_has_settings_and_curve(workspace: Workspace, train: Train) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    record = train("tensorboard")
    folder = workspace.ledger.folder(record.run)
    events = EventAccumulator(str(folder))
    events.Reload()
    logged = [event.value for event in events.Scalars("dev_accuracy")]
    assert logged == pytest.approx(curve(workspace, record))
    assert any("learning_rate: 0.005" in file.read_text() for file in folder.rglob("hparams.yml"))


def test_mlflow_has_a_run_for_each_of_ours(workspace: Workspace, train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    one, other = train("mlflow"), train("mlflow", learning_rate=1e-3)
    assert "MLFLOW_TRACKING_URI" not in os.environ
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    client = mlflow.MlflowClient((workspace.reports / "mlruns").absolute().as_uri())
    experiment = client.get_experiment_by_name("adapter-fusion")
    runs = {run.data.tags["run"]: run for run in client.search_runs([experiment.experiment_id])}
    assert runs.keys() == {one.run, other.run}
    for record in (one, other):
        run = runs[record.run]
        assert run.info.run_name == "frozen films seed 0"
        assert run.data.params["learning_rate"] == str(record.recipe.learning_rate)
        assert run.info.status == "FINISHED"
        history = client.get_metric_history(run.info.run_id, "dev_accuracy")
        assert [metric.value for metric in history] == pytest.approx(curve(workspace, record))


def test_a_run_that_fails_ends_its_tracking_too(
    workspace: Workspace, train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow")

    def broken(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("pipeline.runs.training_run.fit", broken)
        with pytest.raises(KeyboardInterrupt):
            train("mlflow")
    assert mlflow.active_run() is None
    assert train("mlflow").dev > 0


def test_what_cannot_be_started_says_why(train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "nonsense://here")
    with pytest.raises(PipelineError, match="--track mlflow: cannot be started: .*nonsense"):
        train("mlflow")
    assert os.environ["MLFLOW_TRACKING_URI"] == "nonsense://here"


def test_one_that_is_not_installed_says_what_to_install(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.training.devices.get_available_trackers", lambda: ["tensorboard"])
    with pytest.raises(PipelineError, match="--track wandb: not installed: pip install wandb"):
        train("wandb")
