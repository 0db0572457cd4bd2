"""Which trained model ``--using`` means: the best of a kind in the store, or a run."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.data.tasks import Task
from pipeline.records.ledger import RunRecord
from pipeline.records.store import Artifact, Store
from pipeline.runs.restore import on_own_backbone
from pipeline.runs.workspace import Workspace
from pipeline.settings.recipe import Recipe
from pipeline.system.errors import PipelineError, shortened
from pipeline.system.reading import present

KINDS = {"auto": ("adapter", "fusion"), "fusion": ("fusion",), "adapter": ("adapter",)}
"""What ``--using`` takes from the store. Of equal dev scores the first kind counts: an adapter is faster."""


@dataclass(frozen=True)
class Target:
    """A task, and what predicts it on the workspace's backbone: an artifact, or a run that kept its weights."""

    task: Task
    trained: Artifact | RunRecord
    run: str
    recipe: Recipe
    workspace: Workspace

    @property
    def kind(self) -> str:
        """``fusion``, ``adapter``, or the kind of the run."""
        return self.trained.manifest.kind if isinstance(self.trained, Artifact) else self.trained.kind


def target_of(task: Task, using: str, workspace: Workspace, drop_layers: tuple[int, ...]) -> Target:
    """``task`` with what ``using`` means: the best of a kind in the store, an artifact, or a run outside the store.

    Where the workspace names no backbone, it is on the model's own.
    """
    trained = best_model(task.name, using, workspace) if using in KINDS else find_run(using, task.name, workspace)
    if drop_layers and not isinstance(trained, Artifact):
        raise PipelineError(f"--drop-layers: run {trained.run} ({trained.kind}) has no adapters to leave out")
    return as_target(task, trained, workspace)


def as_target(task: Task, trained: Artifact | RunRecord, workspace: Workspace) -> Target:
    """``task`` with what was trained for it.

    Raises:
        PipelineError: it is a run that kept no weights.
    """
    if isinstance(trained, Artifact):
        manifest = trained.manifest
        return Target(task, trained, manifest.run, manifest.recipe, on_own_backbone(workspace, trained))
    if trained.weights_sha256 is None:
        raise PipelineError(
            f"run {trained.run} ({trained.kind}) kept no model: adapters, fusions and head-only runs do, others where"
            " their row of the study says keep_weights = true, or under compare --keep-weights, which trains it again"
        )
    return Target(task, trained, trained.run, trained.recipe_of(task.name), on_own_backbone(workspace, trained))


def find_run(run: str, task: str, workspace: Workspace) -> Artifact | RunRecord:
    """``run`` as the workspace's store or else its ledger has it.

    Raises:
        PipelineError: neither has it, or it was trained for other tasks than ``task``.
    """
    trained = workspace.store.find(run) or workspace.ledger.find(run)
    if trained is None:
        raise PipelineError(
            f"no run {shortened(run)} in {workspace.store_root} or {workspace.ledger.root}: give {', '.join(KINDS)} or"
            " a run that runs list shows"
        )
    tasks = [trained.manifest.task] if isinstance(trained, Artifact) else trained.trained_on
    if task not in tasks:
        names = ", ".join(f"'{name}'" for name in tasks)
        raise PipelineError(f"run {run} was trained for {names}, not '{task}'")
    return trained


def best_model(task: str, using: str, workspace: Workspace) -> Artifact:
    """The artifact of ``task`` with the best dev score, for the workspace's backbone; for any where it names none.

    Args:
        using: one of :data:`KINDS`.

    Raises:
        PipelineError: the store has none of that kind and task, or none whose backbone and adapters are at hand.
    """
    store, named = workspace.store, workspace.backbone_name
    weights = workspace.backbone.weights_hash if named else None
    if (best := best_artifact(task, using, store, weights)) is not None:
        return best
    of_kind = [artifact.manifest for artifact in store.artifacts() if artifact.manifest.kind in KINDS[using]]
    of_task = [manifest for manifest in of_kind if manifest.task == task]
    where = f"no {'model' if using == 'auto' else using} of '{task}' in {store.root}"
    if not of_task:
        others = ", ".join(sorted({manifest.task for manifest in of_kind}))
        none = "there is none" if present(store.root) else "no such folder (--store)"
        there = f"there are those of {others}" if others else none
        command = "fuse --target" if using == "fusion" else "extract --task"
        raise PipelineError(f"{where}: {there}; python -m pipeline {command} {task} trains one")
    if all(weights not in (None, manifest.backbone_weights) for manifest in of_task):
        backbones = ", ".join(sorted({manifest.backbone for manifest in of_task}))
        raise PipelineError(
            f"{where} fits backbone '{named}': those there were trained on {backbones}; name that one (--backbone)"
        )
    raise PipelineError(f"{where} has all its adapters there: see python -m pipeline store verify")


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
    """The one with the best dev score of the kinds that ``using`` takes; None if none is of such a kind.

    What a part of dev chose (``--dev-limit``, a study that scores the other half) comes after all that all of dev did,
    and controls with permuted labels come last.
    """
    kinds = KINDS[using]

    def rank(artifact: Artifact) -> tuple[Any, ...]:
        manifest = artifact.manifest
        *score, run = manifest.rank
        return not manifest.recipe.permute_labels, *score, -kinds.index(manifest.kind), run

    return max((artifact for artifact in artifacts if artifact.manifest.kind in kinds), key=rank, default=None)
