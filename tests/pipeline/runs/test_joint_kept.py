"""Jointly trained models that are kept: they predict as they did on dev, several tasks of one in one pass."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from pipeline.records.run_record import RunRecord
from pipeline.runs.workspace import Workspace
from pipeline.settings.recipe import Recipe
from pipeline.system.errors import PipelineError
from stages.predict import predict
from tests.runs import joint_run

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
        settings = {"using": run, "batch_size": 16, "precision": "fp32"}
        written = predict(target, source, out, dataclasses.replace(workspace), **settings)  # type: ignore[arg-type]
        found = pd.read_parquet(out).drop(columns=pd.read_csv(source).columns.drop("id"))
        numbers = found.replace({"bad": 0, "good": 1}).infer_objects()
        return numbers.rename(columns=lambda name: name.replace("_bad", "_0").replace("_good", "_1")), written.passes

    return says


@pytest.mark.parametrize(
    ("settings", "passes"),
    [
        ({}, 1),
        ({"pooling": "cls"}, 1),
        ({"pooling": "pooler"}, 1),
        ({"split_layers": 1, "pooling": "pooler"}, 1),
        ({"trainable": "head"}, 1),
        ({"split_layers": 1}, 1),
        ({"split_layers": 2, "pooling": "cls"}, 1),
        ({"own": {"films": {"pooling": "cls"}}}, 1),
        ({"own": {"films": {"max_length": 12}}}, 2),
        ({"second_encoder": "static"}, 2),
        ({"second_encoder": "tuned"}, 2),
        ({"trainable": "full+adapter", "adapter": "pal"}, 2),
        ({"trainable": "adapter", "adapter": "prefix"}, 2),
        ({"trainable": "adapter", "adapter": "houlsby", "train_layernorm": True}, 2),
    ],
    ids=str,
)
def test_it_predicts_what_it_predicted_on_dev(settings, passes, workspace, quick, says) -> None:  # type: ignore[no-untyped-def]
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


def test_it_is_for_its_own_tasks(workspace: Workspace, quick: Quick, says) -> None:  # type: ignore[no-untyped-def]
    record = trained(workspace, quick, ["films", "meals"])
    with pytest.raises(PipelineError, match="was trained for 'films', 'meals', not 'pairs'"):
        says("pairs", record.run, "pairs")


def test_a_damaged_or_changed_one_is_refused(workspace: Workspace, quick: Quick, says) -> None:  # type: ignore[no-untyped-def]
    record = trained(workspace, quick, ["films", "meals"])
    file = workspace.ledger.weights_file(record.run)
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(PipelineError, match="missing or damaged"):
        says("films", record.run, "films")
    file.unlink()
    assert trained(workspace, quick, ["films", "meals"]).weights_sha256 == record.weights_sha256  # made again
