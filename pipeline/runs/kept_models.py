"""Which trained model ``--using`` means: the best of a kind in the store, a run, or an ensemble of runs.

Imports nothing heavy, so that a command can ask before its libraries load, which takes seconds (:func:`check_models`).
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.data.tasks import Task, UnknownTaskError, built_in_tasks, find_task, is_name, task_and_run
from pipeline.records.store import DEFAULT_STORE, MANIFEST, Artifact, Store, by_age
from pipeline.settings.recipe import Recipe
from pipeline.system.errors import PipelineError, few, make_all, nearest, shortened
from pipeline.system.reading import present
from pipeline.system.streams import notice

if TYPE_CHECKING:  # they load pandas or torch
    from pipeline.records.run_record import RunRecord
    from pipeline.records.studies import EnsembleRecord
    from pipeline.runs.workspace import Workspace

ENSEMBLE = "ensemble:"
"""Prefix of a ``--using`` that names an ensemble."""
KINDS = {"auto": ("adapter", "fusion"), "fusion": ("fusion",), "adapter": ("adapter",)}
"""Kinds of model that ``--using`` selects from the store. On equal dev scores the first wins: an adapter is faster."""


@dataclass(frozen=True)
class Target:
    """A task and the model for it on the workspace's backbone: an artifact, or a run that kept its weights."""

    task: Task
    trained: Artifact | RunRecord
    run: str
    recipe: Recipe
    workspace: Workspace

    @property
    def kind(self) -> str:
        """``fusion``, ``adapter``, or the kind of the run."""
        return self.trained.manifest.kind if isinstance(self.trained, Artifact) else self.trained.kind

    @property
    def temperature(self) -> float:
        """Calibrates its probabilities; 1: they are as they were trained."""
        kept = self.trained
        return kept.manifest.temperature if isinstance(kept, Artifact) else kept.score(self.task.name).temperature


def check_models(target: str, using: str, find: Callable[[str], Task], store: Path, reports: Path) -> None:
    """Check what ``predict`` is asked for without opening the models.

    Args:
        find: returns the task of a name.

    Raises:
        PipelineError: as :func:`parse_targets`, :func:`ensemble_of`, :func:`find_run` and :func:`kept_for`.
    """
    tasks = parse_targets(target, using, find)
    if using.startswith(ENSEMBLE):
        ensemble_of(using, tasks[0], reports)
    else:
        make_all(
            f"--target {target}", tasks, lambda task: find_model(task.name, using, store, reports, is_defined=True)
        )


def find_model(task: str, using: str, store: Path, reports: Path, *, is_defined: bool = False) -> Artifact | RunRecord:
    """The model that ``using`` means, for any backbone; arguments and errors: :func:`find_run`, :func:`kept_for`."""
    with silent_unless_refused():
        if using in KINDS:
            best = best_of(kept_for(task, using, Store(store), is_defined=is_defined), using)
            assert best is not None
            return best
        return find_run(using, task, Store(store), reports)


@contextmanager
def silent_unless_refused() -> Iterator[None]:
    """Hold back the block's warnings unless it raises: the command itself prints them later."""
    warnings = io.StringIO()
    try:
        with redirect_stderr(warnings):
            yield
    except PipelineError:
        print(warnings.getvalue(), end="", file=sys.stderr)
        raise


def parse_targets(text: str, using: str, find: Callable[[str], Task]) -> list[Task]:
    """The tasks of ``sst,quora,sts`` in their order, aliases resolved."""
    names = [part.strip() for part in text.split(",") if part.strip()]
    if not names:
        raise PipelineError("--target names no task: write for example --target sst, or sst,quora,sts for several")
    tasks = make_all(f"--target {text}", names, find)
    parsed = [task.name for task in tasks]
    twice = sorted({name for name in parsed if parsed.count(name) > 1})
    if twice:
        raise PipelineError(f"--target names {', '.join(twice)} more than once: one column a task can be written")
    if len(tasks) > 1 and using.startswith(ENSEMBLE):
        raise PipelineError(f"--using {using}: an ensemble is made for one task: give one --target")
    return tasks


def parse_model(target: str | Path, store: str | Path | None, *data: Path) -> tuple[str, str, Path]:
    """Task, run (empty: the best one) and store of a task, TASK@RUN or the folder of an artifact.

    Args:
        data: folders of tasks, whose aliases may stand for the task.
    """
    root = Path(DEFAULT_STORE if store is None else store)
    if isinstance(target, str) and is_name(target.partition("@")[0]):
        task, run = task_and_run(target)
        with suppress(UnknownTaskError):  # a model needs no file of its task
            task = find_task(task, *data).name
        return task, run, root
    folder = Path(target).absolute()
    if not present(folder / MANIFEST) or len(folder.parents) < 3:
        raise PipelineError(
            f"{shortened(str(target))} is not a task, TASK@RUN or folder of an artifact (it has no {MANIFEST})"
        )
    if store is not None and root.resolve() != folder.parents[2].resolve():
        raise PipelineError(f"{folder} is in another store than {root}: leave out store=")
    artifact = Store(folder.parents[2]).find(folder.name)
    if artifact is None or artifact.folder != folder:
        raise PipelineError(
            f"{folder} is not in a store: its place is STORE/adapters/TASK/RUN, or fusions for a fusion"
        )
    return artifact.manifest.task, artifact.manifest.run, folder.parents[2]


def ensemble_of(using: str, task: Task, reports: Path) -> EnsembleRecord:
    """The ensemble that ``using`` names; a :class:`PipelineError` if it does not exist or is for another task."""
    from pipeline.records.studies import Ensembles

    ensemble = Ensembles(reports).named(using.removeprefix(ENSEMBLE))
    what = f"ensemble '{ensemble.name}'"
    if ensemble.task != task.name:
        raise PipelineError(f"{what} was made for '{ensemble.task}', not '{task.name}'")
    if ensemble.meaning != task.meaning:
        raise PipelineError(f"{what} was made when task '{task.name}' had other classes or range: make it again")
    return ensemble


def target_of(task: Task, using: str, workspace: Workspace, drop_layers: tuple[int, ...]) -> Target:
    """``task`` with the model that ``using`` means: the best of a kind in the store, an artifact, or a ledger run.

    If the workspace names no backbone, it gets the model's.
    """
    if using in KINDS:
        trained: Artifact | RunRecord = best_model(task.name, using, workspace, task)
    else:
        trained = find_run(using, task.name, workspace.store, workspace.reports)
    if drop_layers and not isinstance(trained, Artifact):
        raise PipelineError(f"--drop-layers: run {trained.run} ({trained.kind}) has no adapters to leave out")
    return as_target(task, trained, workspace)


def as_target(task: Task, trained: Artifact | RunRecord, workspace: Workspace) -> Target:
    """``task`` with the model that was trained for it.

    Raises:
        PipelineError: it is a run that kept no weights, or an artifact that is not in the workspace's store.
    """
    if isinstance(trained, Artifact):
        manifest = trained.manifest
        return Target(task, trained, manifest.run, manifest.recipe, on_own_backbone(workspace, trained))
    if trained.artifact_digest is not None:
        raise PipelineError(
            f"the {trained.kind} of run {trained.run} is not in {workspace.store.root}: name the store that has it"
            " (--store), import it (store import), or run its command again"
        )
    if trained.weights_sha256 is None:
        raise PipelineError(
            f"run {trained.run} ({trained.kind}) kept no model: adapters, fusions and head-only runs do, others where"
            " their row of the study says keep_weights = true, or under compare --keep-weights, which trains it again"
        )
    return Target(task, trained, trained.run, trained.recipe_of(task.name), on_own_backbone(workspace, trained))


def on_own_backbone(workspace: Workspace, trained: Artifact | RunRecord) -> Workspace:
    """The workspace on the backbone that ``trained`` names, if the command names none (its name is empty)."""
    if workspace.backbone_name:
        return workspace
    name = trained.manifest.backbone if isinstance(trained, Artifact) else trained.backbone
    own = workspace.on(name)
    try:
        own.backbone  # noqa: B018  (opened here, where the source of the name is known)
    except PipelineError as error:
        raise PipelineError(f"{error}. The model was trained on it: give its folder or Hub id (--backbone)") from error
    return own


def find_run(run: str, task: str, store: Store, reports: Path) -> Artifact | RunRecord:
    """Look up ``run`` in the store, then in the ledger.

    Raises:
        PipelineError: neither has it, it was trained for other tasks than ``task``, or it is an ensemble.
    """
    if run.startswith(ENSEMBLE):
        raise PipelineError(
            f"--using {run}: an ensemble is several models, which only predict and evaluate ask together: give one of"
            " its members, as --using RUN"
        )
    from pipeline.records.ledger import Ledger

    ledger = Ledger(reports)
    trained = store.find(run) or ledger.find(run)
    if trained is None:
        near = nearest(run, KINDS)
        meant = f"; did you mean '{near}'?" if near else ""
        raise PipelineError(
            f"no run {shortened(run)} in {store.root} or {ledger.root}: give {', '.join(KINDS)} or a run that runs list"
            f" shows{meant}"
        )
    check_task(trained, task)
    return trained


def check_task(trained: Artifact | RunRecord, task: str) -> None:
    """Raise a :class:`PipelineError` unless ``task`` is one that the model was trained for."""
    if isinstance(trained, Artifact):
        run, tasks = trained.manifest.run, [trained.manifest.task]
    else:
        run, tasks = trained.run, [*trained.trained_on]
    if task not in tasks:
        names = ", ".join(f"'{name}'" for name in tasks)
        raise PipelineError(f"run {run} was trained for {names}, not '{task}'")


def best_model(task: str, using: str, workspace: Workspace, defined: Task | None = None) -> Artifact:
    """The artifact of ``task`` with the best dev score for the workspace's backbone, or for any if it names none.

    A note names the best artifact that was scored on other dev rows, since the two scores cannot be compared. If the
    task's definition is not at hand, another note names models of other classes.

    Args:
        using: one of :data:`KINDS`.
        defined: the task as it is now; None if its definition is not at hand.

    Raises:
        PipelineError: the store has none of that kind and task, or none whose backbone and adapters are at hand, or
            only those that were trained when the task meant something else.
    """
    store, named = workspace.store, workspace.backbone_name
    kept = kept_for(task, using, store, is_defined=defined is not None)
    weights = workspace.backbone.weights_hash if named else None
    usable = [each for each in usable_artifacts(store.artifacts(), weights) if each.manifest.task == task]
    if (best := best_of(usable, using, defined)) is not None:
        if defined is not None:  # before a note says that it is used
            from pipeline.runs.build import check_meaning

            check_meaning(best.manifest, defined)
        if note := _other_dev_note(best, usable, using):
            notice(note)
        if defined is None and (note := other_meaning_note(best, usable)):
            notice(note)
        return best
    where = _none_of(task, using, store)
    if all(weights not in (None, artifact.manifest.backbone_weights) for artifact in kept):
        backbones = ", ".join(sorted({artifact.manifest.backbone for artifact in kept}))
        raise PipelineError(
            f"{where} fits backbone '{named}': those there were trained on {backbones}; name that one (--backbone)"
        )
    raise PipelineError(f"{where} has all its adapters there: see python -m pipeline store verify")


def kept_for(task: str, using: str, store: Store, *, is_defined: bool = False) -> list[Artifact]:
    """The artifacts of a task in the store, for any backbone; a :class:`PipelineError` if there are none.

    Args:
        using: one of :data:`KINDS`.
        is_defined: the task is known to exist, so its name is no misspelling.
    """
    of_kind = [artifact for artifact in store.artifacts() if artifact.manifest.kind in KINDS[using]]
    if kept := [artifact for artifact in of_kind if artifact.manifest.task == task]:
        return kept
    tasks = sorted({artifact.manifest.task for artifact in of_kind})
    if not is_defined and task not in built_in_tasks() and (near := nearest(task, tasks)):
        raise PipelineError(f"{_none_of(task, using, store)}: did you mean '{near}'?")
    others = ", ".join(tasks)
    none = "there is none" if present(store.root) else "no such folder (--store)"
    there = f"there are those of {others}" if others else none
    command = "fuse --target" if using == "fusion" else "extract --task"
    raise PipelineError(f"{_none_of(task, using, store)}: {there}; python -m pipeline {command} {task} trains one")


def _none_of(task: str, using: str, store: Store) -> str:
    return f"no {'model' if using == 'auto' else using} of '{task}' in {store.root}"


def other_meaning_note(used: Artifact, artifacts: Sequence[Artifact]) -> str:
    """Say that some of a store's ``artifacts`` are for the same task with other classes; empty if none are."""
    task = used.manifest.task
    own = [each for each in artifacts if each.manifest.task == task]
    others = by_age(each for each in own if _meaning(each) != _meaning(used))[::-1]
    if not others:
        return ""

    def name(each: Artifact) -> str:
        newer = ", newer" if each.manifest.finished_at > used.manifest.finished_at else ""
        return f"{each.manifest.kind} {each.manifest.run}{newer}"

    return (
        f"note: {task}: {name(used)} is used. Models of other classes, range or metric are not:"
        f" {'; '.join(few([*map(name, others)], 3))}. The name {task}@RUN takes one of these"
    )


def _meaning(artifact: Artifact) -> tuple[dict[str, Any], bool]:
    return artifact.manifest.meaning, artifact.manifest.pair


def _other_dev_note(best: Artifact, usable: Sequence[Artifact], using: str) -> str:
    """Name the best of the ``usable`` artifacts that were scored on other whole dev splits; empty if none was."""
    used, alike = best.manifest, [each for each in usable if _meaning(each) == _meaning(best)]
    whole = [each for each in alike if not each.manifest.part_of_dev]
    other = best_of([each for each in whole if each.manifest.dev_fingerprint != used.dev_fingerprint], using)
    if other is None or used.part_of_dev:  # best_of ranks scores on a part of dev below those of a whole dev split
        return ""
    first, second = (
        f"{each.kind} {each.run} (dev {each.metric} {each.dev:.4f} on {each.dev_rows:,} rows)"
        for each in (used, other.manifest)
    )
    return (
        f"note: {used.task}: {first} is used. {second} was scored on other dev rows, so the two cannot be compared:"
        f" --using {other.manifest.run} takes that one"
    )


def usable_artifacts(artifacts: Sequence[Artifact], backbone_weights: str | None) -> list[Artifact]:
    """The ``artifacts`` that fit this backbone (None: any) and whose adapters are all in the store."""
    digests = {artifact.manifest.run: artifact.manifest.digest for artifact in artifacts}
    return [
        artifact
        for artifact in artifacts
        if backbone_weights in (None, artifact.manifest.backbone_weights)
        and all(digests.get(source.run) == source.digest for source in artifact.manifest.sources)
    ]


def best_of(artifacts: Sequence[Artifact], using: str, defined: Task | None = None) -> Artifact | None:
    """The best of a task's ``artifacts`` among the kinds that ``using`` takes; None if there is none.

    The best has the highest dev score. On a tie an adapter wins, then the artifact that finished first. Artifacts that
    were selected on a part of dev (``--dev-limit``, a study that scores the other half) rank below those selected on
    all of dev, and controls with permuted labels rank last.

    Scores for other classes, another range, metric or number of texts cannot be compared. So only artifacts count that
    were trained for the task as it is ``defined``; if there are none, or it is None, those that share the meaning of
    the artifact that finished last. The code that restores a model for another definition reports the change.
    """
    kinds = KINDS[using]
    of_kind = by_age(artifact for artifact in artifacts if artifact.manifest.kind in kinds)
    meanings = [_meaning(artifact) for artifact in of_kind]
    meaning = None if defined is None else (defined.meaning, defined.is_pair)
    if meaning not in meanings:
        meaning = next(reversed(meanings), None)

    def rank(artifact: Artifact) -> tuple[Any, ...]:
        manifest = artifact.manifest
        return not manifest.recipe.permute_labels, *manifest.rank, -kinds.index(manifest.kind)

    return max((artifact for artifact in of_kind if _meaning(artifact) == meaning), key=rank, default=None)
