"""Class weights, label smoothing and a limit on the rows that score, in runs of every kind."""

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from pipeline.runs import training_run
from pipeline.runs.workspace import Workspace
from pipeline.settings.recipe import Recipe
from stages.extract import extract
from stages.fuse import fuse
from stages.prune import prune
from tests.runs import joint_run, single_run

pytestmark = pytest.mark.usefixtures("trained_once")

Quick = Callable[..., Recipe]


@pytest.fixture
def uneven(workspace: Workspace, tmp_path: Path) -> Workspace:
    """Of the training rows of films, one in eight is of class 1."""
    data = shutil.copytree(workspace.data, tmp_path / "uneven")
    rows = pd.read_csv(data / "films" / "train.csv")
    few = rows[rows["label"] == 1].head(6)
    pd.concat([rows[rows["label"] == 0].head(42), few]).to_csv(data / "films" / "train.csv", index=False)
    return dataclasses.replace(workspace, data=data)


def weights_in(run: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> dict[str, torch.Tensor | None]:
    """The class weights that a run's loss has, by task."""
    found = {}
    original = training_run.objective_of

    def remember(task: Any, recipe: Recipe, weights: torch.Tensor | None = None) -> Any:
        found[task.name] = weights
        return original(task, recipe, weights)

    with monkeypatch.context() as patched:
        patched.setattr(training_run, "objective_of", remember)
        run()
    return found


def test_weights_are_those_of_the_rows_that_a_run_trains_on(
    uneven: Workspace, quick: Quick, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = quick("adapter", class_weights="balanced", epochs=1)
    expected = [48 / (2 * 42), 48 / (2 * 6)]
    found = weights_in(lambda: extract("films", recipe, uneven, seed=0), monkeypatch)
    assert found["films"].tolist() == pytest.approx(expected)
    extract("meals", quick("adapter"), uneven, seed=0)
    fused = recipe.changed({"trainable": "fusion"})
    assert weights_in(lambda: fuse("films", fused, uneven, seed=0), monkeypatch)["films"] is not None
    # In joint training, where only one of the tasks asks for them.
    tasks = ("films", "meals", "pairs")
    recipes = {name: quick("full", class_weights="balanced" if name == "films" else "none") for name in tasks}
    joint = joint_run(uneven, tasks, recipes, limits=dict.fromkeys(tasks), seed=0)
    found = weights_in(joint.get, monkeypatch)
    assert found["films"].tolist() == pytest.approx(expected)
    assert (found["meals"], found["pairs"]) == (None, None)


def test_a_limit_on_dev_is_part_of_a_run_and_the_same_for_all(workspace: Workspace, quick: Quick) -> None:
    fewer = dataclasses.replace(workspace, dev_limit=10)
    recipe = quick("adapter", epochs=1)
    records = {seed: extract("films", recipe, fewer, seed=seed).record for seed in (0, 1)}
    assert {record.scores["films"].rows for record in records.values()} == {10}
    rows = [workspace.ledger.predictions(record.run)["id"].tolist() for record in records.values()]
    assert rows[0] == rows[1]
    assert single_run(workspace, "adapter", "films", recipe, seed=0).name != records[0].run
    many = dataclasses.replace(workspace, dev_limit=10**6)
    whole = single_run(workspace, "adapter", "films", recipe, seed=0)
    assert single_run(many, "adapter", "films", recipe, seed=0).name == whole.name
    for source in ("meals", "pairs"):
        extract(source, recipe, fewer, seed=0)
    fused = fuse("films", quick("fusion", epochs=1, gate_start="even"), fewer, seed=0).record
    assert fused.scores["films"].rows == 10
    pruned = prune("films", dataclasses.replace(fewer), keep=1).record
    assert pruned.scores["films"].rows == 10
    assert workspace.ledger.predictions(pruned.run)["id"].tolist() == rows[0]
