"""What fusion is compared with: head only, full and sequential fine-tuning."""

from __future__ import annotations

from pipeline.ledger import RunRecord
from pipeline.recipe import Recipe
from stages.request import RunRequest
from stages.run import Run
from stages.workspace import Workspace


def frozen_run(task: str, recipe: Recipe, workspace: Workspace, *, seed: int, limit: int | None) -> Run:
    """The backbone as it is, with a trained head."""
    return Run(RunRequest("frozen", task, recipe, seed, limit), workspace)


def full_run(task: str, recipe: Recipe, workspace: Workspace, *, seed: int, limit: int | None) -> Run:
    """Every weight trained on one task."""
    return Run(RunRequest("full", task, recipe, seed, limit), workspace)


def sequential_run(
    task: str, start: RunRecord, recipe: Recipe, workspace: Workspace, *, seed: int, limit: int | None
) -> Run:
    """Full fine-tuning that starts from full fine-tuning on another task, with a new head (Phang et al. 2019)."""
    return Run(RunRequest("sequential", task, recipe, seed, limit, start=start), workspace)
