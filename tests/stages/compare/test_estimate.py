"""The time that a study will take, against runs with known times."""

from typing import Any

import pytest

from pipeline.records.run_record import Cost, RunRecord, TaskScore
from pipeline.runs.workspace import Workspace
from pipeline.settings.recipe import Recipe
from stages.compare.plan import Job, Part
from stages.compare.progress import Duration, Estimate
from tests.pipeline.records.test_ledger import record


def run_of(workspace: Workspace, kind: str, *tasks: str, **changes: Any) -> RunRecord:
    """A run over 96 training and 40 dev rows for two epochs at 32 rows a second, and 10 dev rows a second."""
    recipe = Recipe(trainable="adapter" if kind == "adapter" else "full", epochs=2)
    own = TaskScore(metric="accuracy", dev=0.5, rows=40, recipe=recipe, train_rows=96)
    backbone = changes.pop("backbone", workspace.backbone.identity)
    values: dict[str, Any] = {
        "kind": kind,
        "identity": {"backbone": backbone, "tasks": {task: {"meaning": {}} for task in tasks}},
        "scores": dict.fromkeys(tasks, own),
        "cost": Cost(trainable_parameters=1, seconds=14.0, examples_per_second=32.0, peak_memory_mb=1.0),
        "sources": (),
    }
    return record(**{"run": f"{kind}-{tasks[0]}", **values, **changes})


def job(kind: Any, *tasks: str, limit: int | None = None, backbone: str | None = None, **recipe: Any) -> Job:
    found = Recipe(trainable="adapter" if kind == "adapter" else "full", **recipe)
    return Job(kind, tuple(Part(task, found, limit) for task in tasks), seed=0, backbone=backbone)


@pytest.fixture
def estimate(workspace: Workspace) -> Estimate:
    found = Estimate(workspace)
    found.learn(run_of(workspace, "full", "films"))
    return found


@pytest.mark.parametrize(
    ("asked", "seconds"),
    [
        (job("full", "films", epochs=2), 2 * 3 + 2 * 4),
        (job("full", "films", epochs=4), 4 * 3 + 4 * 4),
        (job("full", "films"), 134 * 3 + 10 * 4),  # 400 steps of three an epoch, scored ten times
        (job("full", "films", batch_size=1, limit=96), 5 * 3 + 5 * 4),
        (job("full", "films", epochs=2, limit=48), 2 * 1.5 + 2 * 4),
        (job("full", "films", epochs=4, evaluations=1), 4 * 3 + 4),
        (job("full", "films", epochs=1, min_steps=12), 4 * 3 + 4 * 4),
        (job("full", "films", epochs=2, smart=1.0), 8 / 3 * 2 * 3 + 2 * 4),
        (job("full", "films", epochs=2, bregman=1.0), 4 / 3 * 2 * 3 + 2 * 4),
        (job("full", "meals", epochs=2), 2 * 3 + 2 * 4),  # another task: the same, where it has no run of its own
    ],
)
def test_time_goes_with_the_rows_trained_on_and_scored(estimate: Estimate, asked: Job, seconds: float) -> None:
    assert estimate.seconds(asked) == pytest.approx(seconds)


def test_a_run_counts_once_and_a_job_costs_the_same_however_many_there_are(
    workspace: Workspace, estimate: Estimate, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Cost(trainable_parameters=1, seconds=28.0, examples_per_second=16.0, peak_memory_mb=1.0)
    for _ in range(3):
        estimate.learn(run_of(workspace, "full", "films", run="slow", cost=slow))
    assert estimate.learned_from([job("full", "films")]) == 2
    assert estimate.seconds(job("full", "films", epochs=2)) == pytest.approx(21)
    monkeypatch.setattr("stages.compare.progress._work", lambda *_: pytest.fail("a record is looked at again"))
    assert estimate.seconds(job("full", "films", epochs=2)) == pytest.approx(21)


def test_a_run_of_the_same_task_counts_before_those_of_others(workspace: Workspace, estimate: Estimate) -> None:
    slow = Cost(trainable_parameters=1, seconds=140.0, examples_per_second=3.2, peak_memory_mb=1.0)
    estimate.learn(run_of(workspace, "full", "pairs", cost=slow))
    assert estimate.seconds(job("full", "films", epochs=2)) == pytest.approx(14)
    assert estimate.seconds(job("full", "pairs", epochs=2)) == pytest.approx(140)
    assert estimate.seconds(job("full", "meals", epochs=2)) == pytest.approx(77)


@pytest.mark.parametrize(
    ("recipe", "rows"),
    [
        ({}, 2 * 3 * 96),
        ({"mixing": "round-robin"}, 2 * 3 * 96),
        ({"mixing": "shuffled"}, 2 * 3 * 96),
        ({"mixing": "annealed", "steps_per_epoch": 6}, 2 * 6 * 32),
        ({"steps_per_epoch": 6}, 2 * 6 * 96),
    ],
    ids=str,
)
def test_joint_training_takes_as_long_as_its_rule_has_steps(
    recipe: dict[str, Any], rows: int, workspace: Workspace, estimate: Estimate
) -> None:
    """Three tasks of 96 rows in three batches each, at 32 rows a second; the scores of 120 rows take 12 seconds."""
    cost = Cost(trainable_parameters=1, seconds=2 * 9 + 2 * 12, examples_per_second=32.0, peak_memory_mb=1.0)
    estimate.learn(run_of(workspace, "multitask", "films", "meals", "pairs", cost=cost))
    asked = job("multitask", "films", "meals", "pairs", epochs=2, **recipe)
    assert estimate.seconds(asked) == pytest.approx(rows / 32 + 2 * 12)


def test_what_no_run_tells_is_unknown(workspace: Workspace, estimate: Estimate) -> None:
    assert estimate.seconds(job("adapter", "films")) is None
    estimate.learn(run_of(workspace, "adapter", "films", backbone={"weights": "another"}))
    assert estimate.seconds(job("adapter", "films")) is None
    both = [job("adapter", "films"), job("full", "films", epochs=2)]
    assert estimate.total(both) == Duration(pytest.approx(14), 1)
