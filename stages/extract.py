"""Stage one: knowledge extraction, an adapter for a task on the frozen backbone."""

from __future__ import annotations

from pipeline.ledger import RunRecord
from pipeline.recipe import Recipe
from stages.request import RunRequest
from stages.run import Run
from stages.workspace import Workspace


def extract(
    task: str, recipe: Recipe, workspace: Workspace, *, seed: int, limit: int | None = None, force: bool = False
) -> RunRecord:
    """Train an adapter for ``task`` and put it into the store; at once the old result if it was trained before."""
    return Run(RunRequest("adapter", task, recipe, seed, limit), workspace).get(force)
