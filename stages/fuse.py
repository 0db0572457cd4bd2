"""Stage two: knowledge composition, fusion layers over the adapters of several tasks for one target."""

import sys

from pipeline.records.ledger import RunRecord
from pipeline.runs.sources import Fusion, parse_sources
from pipeline.runs.training_run import TrainingRun
from pipeline.runs.workspace import Workspace
from pipeline.settings.recipe import Recipe


def fuse(
    target: str,
    recipe: Recipe,
    workspace: Workspace,
    *,
    seed: int,
    limit: int | None = None,
    adapters: str | None = None,
    force: bool = False,
) -> RunRecord:
    """Train fusion layers for ``target`` and put them into the store.

    Without ``limit``, stage two reads the rows stage one read: the limit of the target's own adapter.
    """
    names = parse_sources(adapters, workspace) if adapters is not None else None
    fusion = Fusion(workspace.task(target), recipe, workspace)
    chosen = fusion.choose(names, seed)
    own = next((a.manifest for a in chosen if a.manifest.task == fusion.task.name), None)
    if own is not None and limit is None:
        limit = own.limit
    run = TrainingRun(fusion.request(chosen, seed=seed, limit=limit), workspace)
    if own is not None and own.train_rows != run.data[own.task].fingerprint["train"]:
        print(
            f"note: stage two should read the rows of stage one, but adapter {own.run} of {own.task} was trained on"
            f" others (--seed {own.seed}, --limit {own.limit or 'all'}; compare --data and --drop-overlap too)",
            file=sys.stderr,
        )
    return run.get(force)
