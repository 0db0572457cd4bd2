"""Stage one: knowledge extraction, an adapter for a task on the frozen backbone."""

from pipeline.records.ledger import RunRecord
from pipeline.records.store import Artifact, why_other_backbone
from pipeline.runs.request import RunRequest
from pipeline.runs.starting import why_not_started_from
from pipeline.runs.training_run import TrainingRun
from pipeline.runs.workspace import Workspace
from pipeline.settings.parts import BOTTLENECKS
from pipeline.settings.recipe import Recipe
from pipeline.system.errors import PipelineError, raise_all
from stages.fuse import SourceName, parse_sources

BEST = "best"


def extract(
    task: str,
    recipe: Recipe,
    workspace: Workspace,
    *,
    seed: int,
    limit: int | None = None,
    start_from: str | None = None,
    force: bool = False,
) -> RunRecord:
    """Train an adapter for ``task`` and put it into the store; at once the old result if it was trained before.

    Args:
        start_from: the other tasks' adapters that it may begin as (:func:`starting_adapters`).
    """
    starts = () if start_from is None else starting_adapters(start_from, task, recipe, workspace, seed)
    return TrainingRun(RunRequest.single("adapter", task, recipe, seed, limit, adapters=starts), workspace).get(force)


def starting_adapters(text: str, target: str, recipe: Recipe, workspace: Workspace, seed: int) -> tuple[Artifact, ...]:
    """The adapters that ``text`` names: ``sick``, ``sick,quora@RUN``, or ``best`` for those of all tasks that fit.

    Of several of a task the one with the same seed, then the best dev score.

    Raises:
        PipelineError: none fits, or one named does not; with the reason.
    """
    task = workspace.task(target)
    recipe = workspace.resolve(recipe, task)
    if recipe.adapter.kind not in BOTTLENECKS:
        raise PipelineError(
            f"--start-from: an adapter of kind {recipe.adapter.kind} begins fresh (--adapter houlsby does not)"
        )
    verdicts: list[tuple[Artifact, str | None]] = []
    for artifact in workspace.store.artifacts():
        manifest = artifact.manifest
        if manifest.kind == "adapter" and manifest.task != task.name:
            why = why_other_backbone(manifest, workspace.backbone.weights_hash)
            verdicts.append((artifact, why or why_not_started_from(manifest.recipe, manifest.pair, recipe)))
    fitting = {artifact.manifest.task for artifact, why in verdicts if why is None}
    names = list(map(SourceName, fitting)) if text == BEST else parse_sources(text, workspace, "--start-from")
    chosen, problems = [], []
    for name in names:
        meant = [(artifact, why) for artifact, why in verdicts if name.means(artifact.manifest)]
        if able := [artifact for artifact, why in meant if why is None]:
            chosen.append(max(able, key=lambda a: (a.manifest.seed == seed, a.manifest.dev, a.manifest.run)))
        elif name.task == task.name:
            problems.append(f"{name.task}: that is the task itself")
        elif meant:
            *_, (artifact, why) = meant
            problems.append(f"{name.task}: adapter {artifact.manifest.run} {why}")
        else:
            missing = f"no adapter {name.run}" if name.run else "no adapter"
            problems.append(f"{name.task}: {missing} in {workspace.store_root}")
    raise_all("--start-from", problems)
    if not chosen:
        raise PipelineError(
            f"--start-from {BEST}: no other task's adapter in {workspace.store_root} fits: train one first"
            " (python -m pipeline extract --task TASK)"
        )
    return tuple(workspace.store.current(a) for a in sorted(chosen, key=lambda a: a.manifest.task))
