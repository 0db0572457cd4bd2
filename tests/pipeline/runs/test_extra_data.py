"""Runs with extra data: single and joint ones train on the same rows, and their records say where these came from."""

from collections.abc import Callable

from pipeline.runs.training_run import TrainingRun
from pipeline.runs.workspace import Workspace
from pipeline.settings.recipe import Recipe
from tests.runs import joint_run, single_run

Quick = Callable[..., Recipe]
EXTRA = {"meals": {}}


def single(workspace: Workspace, recipe: Recipe, limit: int | None = None) -> TrainingRun:
    return single_run(workspace, "full", "films", recipe, seed=1, limit=limit)


def test_a_run_says_how_many_rows_came_from_where(workspace: Workspace, quick: Quick) -> None:
    record = single(workspace, quick("full", epochs=1, extra=EXTRA), limit=40).get()
    (source,) = record.own.added
    found = record.own.added[source]
    assert source == "meals"
    # The words of the two tasks are few: most sentences of one stand in dev of the other.
    assert found.in_dev > 0
    assert 0 < found.rows <= 40
    assert record.own.train_rows == 40 + found.rows
    assert workspace.ledger.find(record.run) == record
    assert workspace.ledger.curve(record.run)["examples"].tolist() == [record.own.train_rows]


def test_a_joint_run_reads_the_rows_that_a_single_one_reads(workspace: Workspace, quick: Quick) -> None:
    recipes = {"films": quick("full", epochs=1, extra=EXTRA), "pairs": quick("full", epochs=1)}
    joint = joint_run(workspace, tuple(recipes), recipes, seed=1, limits={"films": 40, "pairs": 30})
    alone = single(workspace, recipes["films"], limit=40)
    assert joint.data["films"].fingerprint == alone.data["films"].fingerprint
    assert joint.data["pairs"].added == {}
    record = joint.get()
    assert "films" in record.trained_on
    assert record.scores["films"].added == alone.data["films"].added
    assert record.scores["pairs"].added == {}
    recipes = {"meals": quick("full", epochs=1), "pairs": quick("full", epochs=1), "films": recipes["films"]}
    swapped = joint_run(workspace, ("meals", "films"), recipes, seed=1, limits={"films": 40, "meals": 40}).get()
    assert swapped.scores["meals"].added == {}
    assert swapped.scores["films"].added == alone.data["films"].added
