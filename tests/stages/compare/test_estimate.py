"""The time that a study will take, against runs with known times."""

from dataclasses import replace
from typing import Any

import numpy as np
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
    assert 14 < estimate.seconds(job("full", "meals", epochs=2)) < 140


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
    """A head says nothing of what passes through the backbone cost, nor another backbone of this one."""
    assert estimate.seconds(job("frozen", "films")) is None
    estimate.learn(run_of(workspace, "frozen", "films", backbone={"weights": "another"}))
    both = [job("frozen", "films"), job("full", "films", epochs=2)]
    assert estimate.total(both) == Duration(pytest.approx(14), 1)


COSTS = {"adapter": 0.8, "full": 1.0, "sequential": 1.0, "fusion": 0.9}
READ = {"films": 40.0, "meals": 110.0, "pairs": 450.0}
"""Characters that a model reads of a row."""
EPOCHS = {"films": 8, "meals": 2, "pairs": 3}


@pytest.mark.parametrize("draw", range(20))
def test_the_time_left_is_within_a_third_of_the_truth_after_the_first_run(draw: int, workspace: Workspace) -> None:
    """Seconds are invented: of any hardware, for what a row has to read, and of kinds and tasks that are a tenth dearer
    or cheaper than that. A fusion also chooses its sources. Earlier runs were on hardware a hundred times faster."""
    random = np.random.default_rng(draw)
    own = {name: random.uniform(0.9, 1.1) for name in (*COSTS, *READ)}
    speed = 10 ** random.uniform(-5, -1)

    def run(job: Job, faster: float = 1, **changes: Any) -> RunRecord:
        task, epochs = job.task, EPOCHS[job.task]
        row = speed / faster * COSTS[job.kind] * own[job.kind] * READ[task] * own[task] * random.uniform(0.95, 1.05)
        seconds = row * epochs * (3 * 96 + 40) * (1.2 if job.kind == "fusion" else 1)
        score = TaskScore(metric="accuracy", dev=0.5, rows=40, recipe=job.parts[0].recipe, train_rows=96)
        cost = Cost(trainable_parameters=1, seconds=seconds, examples_per_second=1 / row / 3, peak_memory_mb=1.0)
        return run_of(workspace, job.kind, task, scores={task: score}, cost=cost, **changes)

    kinds = random.permutation([*COSTS])
    cells = [(seed, kind, task) for seed in range(3) for kind in kinds for task in READ]
    jobs = [replace(job(kind, task, epochs=EPOCHS[task]), seed=seed) for seed, kind, task in cells]
    runs = [run(job, run=f"here-{number}") for number, job in enumerate(jobs)]
    estimate = Estimate(workspace)
    estimate._characters = READ
    for task in READ:
        there = {"provenance": {"hardware": "a GPU"}, "run": f"there-{task}"}
        estimate.learn(run(job("adapter", task, epochs=EPOCHS[task]), faster=100, **there))
    for done in range(1, len(jobs)):
        estimate.learn(runs[done - 1])
        left = estimate.total(jobs[done:])
        assert left.unknown == 0
        assert left.seconds == pytest.approx(sum(run.cost.seconds for run in runs[done:]), rel=1 / 3), done


def test_a_model_reads_no_more_characters_than_it_has_tokens_for(workspace: Workspace) -> None:
    estimate = Estimate(workspace, [job("full", "films"), job("full", "pairs")])
    dev = {task: workspace.splits.of(workspace.task(task), None, 0).dev for task in ("films", "pairs")}
    films = dev["films"]["text_a"].str.len().mean()
    pairs = sum(dev["pairs"][name].str.len().mean() for name in ("text_a", "text_b"))
    most = {task: 4 * workspace.task(task).max_length for task in dev}
    assert estimate._characters == {"films": min(films, most["films"]), "pairs": min(pairs, most["pairs"])}
