"""Jointly trained models that are kept: they predict as they did on dev, several tasks of one in one pass."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from pipeline.records.run_record import RunRecord
from pipeline.records.studies import Entry, StudyResult
from pipeline.runs.workspace import Workspace
from pipeline.settings.parse_study import parse_study
from pipeline.settings.recipe import Recipe
from pipeline.system.errors import PipelineError
from stages.compare.compare import compare
from stages.predict import predict
from stages.report import maps_of
from tests.runs import joint_run, single_run

pytestmark = pytest.mark.usefixtures("trained_once")

Quick = Callable[..., Recipe]


def trained(workspace: Workspace, quick: Quick, tasks: Any, **settings: Any) -> RunRecord:
    own = settings.pop("own", {})
    start = settings.pop("start", None)
    recipes = {task: quick(**({"trainable": "full", "epochs": 1} | settings | own.get(task, {}))) for task in tasks}
    limits = dict.fromkeys(tasks, 40)
    run = joint_run(workspace, tasks, recipes, seed=1, limits=limits, start=start, keep_weights=True)
    return run.get()


@pytest.fixture
def says(workspace: Workspace, data_folder: Path, tmp_path: Path) -> Callable[..., tuple[pd.DataFrame, int]]:
    """What predict adds to the dev rows of a file, in the terms of the ledger's tables, and in how many passes."""

    def says(target: str, run: str, rows_of: str) -> tuple[pd.DataFrame, int]:
        out = tmp_path / "out.parquet"
        source = data_folder / rows_of / "dev.csv"
        settings = {"using": run, "batch_size": 16, "precision": "fp32", "raw": True}
        written = predict(target, source, out, dataclasses.replace(workspace), **settings)
        found = pd.read_parquet(out).drop(columns=pd.read_csv(source).columns.drop("id"))
        found = found.drop(columns=[name for name in found if name.endswith("confidence")])
        numbers = found.replace({"bad": 0, "good": 1}).infer_objects()
        return numbers.rename(columns=lambda name: name.replace("_bad", "_0").replace("_good", "_1")), written.passes

    return says


@pytest.mark.parametrize(
    ("settings", "passes"),
    [
        pytest.param({}, 1, marks=pytest.mark.long),
        pytest.param({"pooling": "cls"}, 1, marks=pytest.mark.long),
        ({"pooling": "pooler"}, 1),
        pytest.param({"split_layers": 1, "pooling": "pooler"}, 1, marks=pytest.mark.long),
        ({"trainable": "head"}, 1),
        pytest.param({"split_layers": 1}, 1, marks=pytest.mark.long),
        ({"split_layers": 2, "pooling": "cls"}, 1),
        ({"own": {"films": {"pooling": "cls"}}}, 1),
        ({"own": {"films": {"max_length": 12}}}, 2),
        ({"second_encoder": "static"}, 2),
        pytest.param({"second_encoder": "tuned"}, 2, marks=pytest.mark.long),
        ({"trainable": "full+adapter", "adapter": "pal"}, 2),
        pytest.param({"trainable": "adapter", "adapter": "prefix"}, 2, marks=pytest.mark.long),
        ({"trainable": "adapter", "adapter": "houlsby", "train_layernorm": True}, 2),
    ],
    ids=str,
)
def test_it_predicts_what_it_predicted_on_dev(settings, passes, workspace, quick, says) -> None:
    record = trained(workspace, quick, ["films", "meals"], **settings)
    expected = {task: workspace.ledger.predictions(record.run, task) for task in ("films", "meals")}
    for task, dev in expected.items():
        alone, _ = says(task, record.run, task)
        pd.testing.assert_frame_equal(alone, dev.drop(columns=["label", "group"]), check_dtype=False, atol=1e-5)
    both, found = says("films,meals", record.run, "films")
    assert found == passes
    own = both[[column for column in both if column.startswith("films_")]]
    pd.testing.assert_frame_equal(
        own.set_axis(own.columns.str.removeprefix("films_"), axis=1),
        expected["films"].drop(columns=["id", "label", "group"]),
        check_dtype=False,
        atol=1e-5,
    )


def test_one_that_went_on_from_another_task_is_kept_whole(workspace: Workspace, quick: Quick, says) -> None:
    """What is frozen in it is not as it was pretrained."""
    start = single_run(workspace, "full", "pairs", quick("full"), seed=1).get()
    record = trained(workspace, quick, ["films", "meals"], trainable="head", start=start)
    dev = workspace.ledger.predictions(record.run, "films").drop(columns=["label", "group"])
    pd.testing.assert_frame_equal(says("films", record.run, "films")[0], dev, check_dtype=False, atol=1e-5)


def test_a_row_of_a_study_keeps_its_models_if_it_says_so(workspace: Workspace, says, monkeypatch) -> None:
    rows: dict[str, Any] = {
        "joint": {"method": "multitask"},
        "in-turn": {"method": "sequential", "order": ["meals", "films"]},
    }
    described = {
        "name": "kept", "methods": list(rows), "targets": ["films", "meals"], "seeds": [1], "limit": 40,
        "recipe": {"epochs": 1, "batch_size": 16},
    }  # fmt: skip

    monkeypatch.setattr(
        "stages.compare.compare.write_report", lambda _result, _ledger, folder: (folder / "tables.md").touch()
    )

    def runs(keep: bool) -> dict[str, str]:
        own = {name: row | {"keep_weights": keep} for name, row in rows.items()}
        result, _ = compare(parse_study({**described, "rows": own}, "test"), dataclasses.replace(workspace))
        return {entry.method: entry.run for entry in result.entries if entry.target == "films" and entry.run}

    unkept = runs(False)
    assert list(unkept) == list(rows)
    for run in unkept.values():
        with pytest.raises(PipelineError, match=r"(?s)kept no model.*keep_weights = true"):
            says("films", run, "films")
    before = {run: workspace.ledger.predictions(run, "films") for run in unkept.values()}
    kept = runs(True)
    assert kept == unkept  # what is kept of a run is no part of what it is
    for run, dev in before.items():
        expected = dev.drop(columns=["label", "group"])
        pd.testing.assert_frame_equal(says("films", run, "films")[0], expected, check_dtype=False, atol=1e-5)
    weights = [workspace.ledger.weights_file(run) for run in kept.values()]
    written = [file.stat().st_mtime_ns for file in weights]
    assert runs(True) == kept
    assert [file.stat().st_mtime_ns for file in weights] == written  # nothing was trained again


def study_of(record: RunRecord, targets: list[str], place: Workspace) -> StudyResult:
    """A study whose one row has ``record`` for every target."""
    described = {"name": "looks", "methods": ["multitask"], "targets": targets, "seeds": [1]}
    entries = tuple(Entry(method="multitask", target=target, seed=1, run=record.run) for target in targets)
    return StudyResult(study=parse_study(described, "test"), backbone=place.backbone_name, entries=entries)


@pytest.mark.parametrize(
    ("settings", "differ"),
    [
        ({"trainable": "adapter", "learning_rate": 0.1}, True),
        ({"trainable": "full+adapter", "adapter": "prefix", "prefix_length": 3, "learning_rate": 0.1}, True),
        ({"split_layers": 2}, True),
        ({}, False),
    ],
    ids=str,
)
def test_its_attention_is_that_of_the_task_in_the_title(settings, differ, workspace: Workspace, quick: Quick) -> None:
    record = trained(workspace, quick, ["films", "meals"], **settings)
    both = study_of(record, ["films", "meals"], workspace)
    films, meals = maps_of("the film is good", [record.run], both, workspace.ledger)
    assert [films.title, meals.title] == ["multitask for films, seed 1", "multitask for meals, seed 1"]
    assert (abs(films.layers[2] - meals.layers[2]).max() > 1e-4) == differ
    prefix = settings.get("prefix_length", 0)  # stands before the tokens
    assert films.layers[2].shape == (len(films.tokens), len(films.tokens) + prefix)
    for targets, expected in ((["films", "meals"], films), (["meals", "films"], meals)):
        result = study_of(record, targets, workspace)
        drawn = maps_of("the film is good", None, result, workspace.ledger)
        # Tasks that the model reads alike are shown once.
        shown = targets if differ else targets[:1]
        assert [each.title for each in drawn] == [f"{result.study.title('multitask')} for {each}" for each in shown]
        assert np.array_equal(drawn[0].layers[2], expected.layers[2])


def test_its_attention_reads_a_pair_as_the_task_does(workspace: Workspace, quick: Quick) -> None:
    apart = {"pairs": {"encoding": "siamese", "head": "cosine"}}
    record = trained(workspace, quick, ["films", "pairs"], own=apart)
    result = study_of(record, ["films", "pairs"], workspace)
    maps = maps_of("the film is good ||| the meal", [record.run], result, workspace.ledger)
    read = [(drawn.title.split()[2], len(drawn.tokens)) for drawn in maps]
    assert read == [("films,", 9), ("pairs,", 6), ("pairs,", 4)]


def test_it_is_for_its_own_tasks(workspace: Workspace, quick: Quick, says) -> None:
    record = trained(workspace, quick, ["films", "meals"])
    with pytest.raises(PipelineError, match="was trained for 'films', 'meals', not 'pairs'"):
        says("pairs", record.run, "pairs")


def test_a_damaged_or_changed_one_is_refused(workspace: Workspace, quick: Quick, says) -> None:
    record = trained(workspace, quick, ["films", "meals"])
    file = workspace.ledger.weights_file(record.run)
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(PipelineError, match="missing or damaged"):
        says("films", record.run, "films")
    file.unlink()
    assert trained(workspace, quick, ["films", "meals"]).weights_sha256 == record.weights_sha256  # made again
