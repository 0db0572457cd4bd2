"""Which trained model ``--using`` means: the best of a kind in the store, or a run."""

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.data.tasks import Task
from pipeline.records.ledger import RunRecord
from pipeline.records.store import Artifact, Store
from pipeline.runs.restore import on_own_backbone
from pipeline.runs.workspace import Workspace
from pipeline.settings.recipe import Recipe
from pipeline.system.errors import PipelineError

KINDS = {"auto": ("fusion", "adapter"), "fusion": ("fusion",), "adapter": ("adapter",)}
"""What ``--using`` takes from the store, the preferred kind first."""


@dataclass(frozen=True)
class Target:
    """A task, and what predicts it on the workspace's backbone: an artifact, or a run that kept its weights."""

    task: Task
    trained: Artifact | RunRecord
    run: str
    recipe: Recipe
    workspace: Workspace


def target_of(task: Task, using: str, workspace: Workspace, drop_layers: tuple[int, ...]) -> Target:
    """``task`` with what ``using`` means: the best of a kind in the store, an artifact, or a run outside the store.

    Where the workspace names no backbone, it is on the model's own.
    """
    artifact = _best(task, using, workspace) if using in KINDS else workspace.store.find(using)
    if artifact is not None:
        manifest = artifact.manifest
        if manifest.task != task.name:
            raise PipelineError(f"run {using} was trained for '{manifest.task}', not '{task.name}'")
        return Target(task, artifact, manifest.run, manifest.recipe, on_own_backbone(workspace, artifact))
    record = workspace.ledger.find(using)
    if record is None:
        raise PipelineError(f"no run {using} in {workspace.store_root} or {workspace.ledger.root}")
    if task.name not in record.trained_on:
        names = ", ".join(f"'{name}'" for name in record.trained_on)
        raise PipelineError(f"run {using} was trained for {names}, not '{task.name}'")
    if drop_layers:
        raise PipelineError(f"--drop-layers: run {using} ({record.kind}) has no adapters to leave out")
    if record.weights_sha256 is None:
        raise PipelineError(
            f"run {using} ({record.kind}) kept no model: adapters, fusions and head-only runs do, others where their"
            " row of the study says keep_weights = true, or under compare --keep-weights, which trains it again"
        )
    return Target(task, record, record.run, record.recipe_of(task.name), on_own_backbone(workspace, record))


def _best(task: Task, using: str, workspace: Workspace) -> Artifact:
    """The task's artifact with the best dev score that the backbone and the store have everything for."""
    named = workspace.backbone_name
    best = best_artifact(task.name, using, workspace.store, workspace.backbone.weights_hash if named else None)
    if best is not None:
        return best
    ours, kinds = _artifacts_of(task.name, using, workspace.store), KINDS[using]
    what = " or ".join(kinds)
    if ours and not named:
        raise PipelineError(
            f"no {what} for '{task.name}' in {workspace.store_root} has all its adapters there: see python -m pipeline"
            " store verify"
        )
    if ours:
        names = ", ".join(sorted({a.manifest.backbone for a in ours}))
        raise PipelineError(
            f"no {what} for '{task.name}' fits backbone '{workspace.backbone_name}' and has all its adapters here;"
            f" those in {workspace.store_root} were trained on {names}: name that with --backbone"
        )
    raise PipelineError(
        f"no {what} for '{task.name}' in {workspace.store_root}: train one with"
        f" python -m pipeline {'fuse --target' if using == 'fusion' else 'extract --task'} {task.name}"
    )


def best_artifact(task: str, using: str, store: Store, backbone_weights: str | None = None) -> Artifact | None:
    """The artifact of ``task`` with the best dev score whose adapters are all in the store; None if there is none.

    Args:
        using: one of :data:`KINDS`.
        backbone_weights: the hash of the backbone that it must be for; None: it may be for any.
    """
    usable = usable_artifacts(store.artifacts(), backbone_weights)
    best = best_of([artifact for artifact in usable if artifact.manifest.task == task], using)
    return None if best is None else store.current(best)


def usable_artifacts(artifacts: Sequence[Artifact], backbone_weights: str | None) -> list[Artifact]:
    """Those of a store's ``artifacts`` that are for this backbone (None: for any) and have all their adapters."""
    digests = {artifact.manifest.run: artifact.manifest.digest for artifact in artifacts}
    return [
        artifact
        for artifact in artifacts
        if backbone_weights in (None, artifact.manifest.backbone_weights)
        and all(digests.get(source.run) == source.digest for source in artifact.manifest.sources)
    ]


def best_of(artifacts: Sequence[Artifact], using: str) -> Artifact | None:
    """The one of the preferred kind with the best dev score, by :data:`KINDS`; None if none is of such a kind."""
    kinds = KINDS[using]
    fitting = [artifact for artifact in artifacts if artifact.manifest.kind in kinds]
    return max(fitting, key=lambda a: (-kinds.index(a.manifest.kind), a.manifest.dev, a.manifest.run), default=None)


def _artifacts_of(task: str, using: str, store: Store) -> list[Artifact]:
    return [a for a in store.artifacts() if a.manifest.task == task and a.manifest.kind in KINDS[using]]
