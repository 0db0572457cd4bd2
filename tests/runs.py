"""Runs that train for one task, or one model for several tasks at once."""

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.runs.request import Part, RunRequest
from pipeline.runs.training_run import TrainingRun
from pipeline.runs.workspace import Workspace
from pipeline.settings.recipe import Recipe


def single_run(workspace: Workspace, kind: Any, task: str, recipe: Recipe, seed: int, **rest: Any) -> TrainingRun:
    rest.setdefault("keep_weights", kind == "full")
    return TrainingRun(RunRequest.single(kind, workspace.task(task), recipe, seed, **rest), workspace)


def joint_run(
    workspace: Workspace,
    tasks: Sequence[str],
    recipes: Mapping[str, Recipe],
    *,
    limits: Mapping[str, int | None],
    **rest: Any,
) -> TrainingRun:
    parts = (Part(workspace.task(task), recipes[task], limits[task]) for task in tasks)
    return TrainingRun(RunRequest("multitask", tuple(parts), **rest), workspace)
