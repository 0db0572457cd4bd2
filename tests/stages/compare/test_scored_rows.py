"""Nothing is chosen on test rows: with their labels permuted, everything but the scores stays the same."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from pipeline.data.task_data import TaskData
from pipeline.records.run_record import RunRecord
from pipeline.records.studies import EnsembleRecord, Entry
from pipeline.runs.workspace import Workspace
from pipeline.settings.parse_study import parse_study
from pipeline.settings.study import Study
from stages.compare.compare import compare
from stages.ensemble import ensemble
from tests.nano import write_tasks

Cells = dict[Entry, RunRecord]


def study(**values: Any) -> Study:
    given = {
        "name": "apart",
        "methods": ["full", "sequential", "multitask", "adapter", "begun", "fusion", "smoothed"],
        "targets": ["films", "pairs"],
        "sources": ["meals"],
        "seeds": [1],
        "limit": 48,
        "recipe": {"epochs": 2, "batch_size": 16, "bottleneck": 8, "learning_rate": 2e-3},
        "cross_task": True,
        "rows": {
            "begun": {"method": "adapter", "of": "adapter"},
            "fusion": {"own": ["adapter", "begun"], "recipe": {"fusion": "anchored"}},
            "smoothed": {"method": "full", "recipe": {"smart": 1.0}},
            "sequential": {"keep_weights": True},
            "multitask": {"keep_weights": True},
        },
        "curve": {"rows": [32], "methods": ["full", "fusion"]},
    }
    return parse_study(given | values, "test")


def finished(chosen: Study, data: Path, backbone: Path, root: Path) -> tuple[Workspace, Cells]:
    workspace = Workspace(str(backbone), data, root / "store", root / "reports")
    result, _ = compare(chosen, workspace)
    cells = {}
    for entry in result.entries:
        assert entry.run is not None, entry.error
        record = workspace.ledger.find(entry.run)
        cells[entry.model_copy(update={"run": None, "total_seconds": None})] = record
    return workspace, cells


def weights_of(record: RunRecord, workspace: Workspace) -> dict[str, bytes]:
    """Every tensor file that the run kept, and that of the runs it was built on."""
    folders = [workspace.ledger.folder(record.run)] + ([Path(record.artifact)] if record.artifact else [])
    files = {str(file.relative_to(folder)): file for folder in folders for file in folder.rglob("*.safetensors")}
    return {name: file.read_bytes() for name, file in files.items()}


def chosen_of(record: RunRecord, workspace: Workspace) -> dict[str, Any]:
    """What a run chose, and what came of it."""
    curve = workspace.ledger.curve(record.run).drop(columns="seconds")
    return {
        "epoch": record.best_epoch,
        "dev": {name: (score.dev, score.rows, score.train_rows) for name, score in record.scores.items()},
        "anchor": (record.anchor, record.anchor_candidates),
        "sources": [source.task for source in record.sources],
        "curve": curve.to_csv(),
        "predictions": {
            name: workspace.ledger.predictions(record.run, name, "test").drop(columns="label").to_csv()
            for name in record.scores
        },
        "weights": weights_of(record, workspace),
    }


def permuted(labels: pd.Series) -> np.ndarray:
    return np.random.default_rng(7).permutation(labels.to_numpy())


def together(cells: Cells, task: str, workspace: Workspace) -> tuple[EnsembleRecord, list[Entry]]:
    """An ensemble of the runs of the main table on a task, and the cells of its members."""
    of_run = {record.run: entry for entry, record in cells.items() if entry.target == task and entry.rows is None}
    made = ensemble(workspace.task(task), "joined", workspace.reports, runs=list(of_run), rule="weighted")
    return made, [of_run[member.run] for member in made.members]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scoring", "whole"),
    [
        ("half", False),
        pytest.param("train", False, marks=pytest.mark.long),
        pytest.param("test", False, marks=pytest.mark.long),
        pytest.param("held-out", False, marks=pytest.mark.long),
        pytest.param("half", True, marks=pytest.mark.long),
    ],
)
def test_no_scored_row_is_chosen_on(
    scoring: str, whole: bool, backbone_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_tasks(tmp_path / "data")
    for task in ("films", "meals", "pairs"):
        # No sentence is shared within dev, or few rows of the tiny language could be parted.
        rows = pd.read_csv(data / task / "dev.csv")
        for column in rows.columns.intersection(["sentence", "sentence1", "sentence2"]):
            rows[column] = [f"{text} {column} {number}" for number, text in enumerate(rows[column])]
        rows.to_csv(data / task / "dev.csv", index=False)
        rows.sample(frac=1, random_state=3).to_csv(data / task / "test.csv", index=False)
    fewer = {} if whole else {"methods": ["sequential", "adapter", "fusion"], "rows": {}, "curve": None}
    chosen = study(scoring=scoring, **fewer)
    workspace, cells = finished(chosen, data, backbone_folder, tmp_path / "true")
    made, members = together(cells, "pairs", workspace)

    method = {"half": "halved", "held-out": "holding_out", "train": "choosing_in_train"}.get(scoring)
    if method is None:
        for task, column in (("films", "label"), ("meals", "label"), ("pairs", "score")):
            rows = pd.read_csv(data / task / "test.csv")
            rows.assign(**{column: permuted(rows[column])}).to_csv(data / task / "test.csv", index=False)
    else:  # labels guide the cut, so they are permuted after it
        original = getattr(TaskData, method)

        def cut(*given: Any) -> TaskData:
            rows = original(*given)
            return dataclasses.replace(rows, test=rows.test.assign(label=permuted(rows.test["label"])))

        monkeypatch.setattr(TaskData, method, cut)
    other, others = finished(chosen, data, backbone_folder, tmp_path / "permuted")
    remade, same_members = together(others, "pairs", other)

    assert cells.keys() == others.keys()
    for entry, record in cells.items():
        again = others[entry]
        assert chosen_of(record, workspace) == chosen_of(again, other), entry
        score = record.score(entry.target)
        assert score.test is not None
        assert (score.value, score.rows > 0, score.scored_rows > 0) == (score.test, True, True)
        assert record.run != again.run  # the test rows are part of a run's identity
        places = ((workspace, record), (other, again))
        labels = [place.ledger.predictions(each.run, entry.target)["label"] for place, each in places]
        assert sorted(labels[0]) == sorted(labels[1])
        assert labels[0].tolist() != labels[1].tolist()
    # An accuracy may come out the same by chance, a correlation may not.
    correlated = [entry for entry in cells if entry.target == "pairs"]
    assert all(cells[entry].score("pairs").value != others[entry].score("pairs").value for entry in correlated)
    assert members == same_members
    assert (made.chosen_on, made.chosen, made.rule) == ("dev", remade.chosen, "weighted")
    assert [member.weight for member in made.members] == [member.weight for member in remade.members]
    assert made.held_out != remade.held_out
