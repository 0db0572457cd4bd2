"""What to train: the request, before anything is read or built, and its parts resolved for their tasks.

Every run is trained once: :func:`get_or_train` takes it from the ledger, or trains it under a lock so that others find
it. Its record says where its numbers come from (:func:`provenance`).
"""

import platform
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar

from pipeline.data.tasks import Task
from pipeline.records.run_record import RunRecord
from pipeline.records.store import Artifact
from pipeline.runs.workspace import Workspace
from pipeline.settings.kinds import KINDS, Method
from pipeline.settings.recipe import OF_PREDICTION, Recipe, check_seed
from pipeline.system.errors import PipelineError, raise_all
from pipeline.system.version import VERSION
from pipeline.training.devices import hardware, processor
from pipeline.training.process_group import on_main_process, process_count

Key = TypeVar("Key", str, Task)
Record = TypeVar("Record", covariant=True)

# The settings that may differ between the tasks of a run; the others concern the one model and its training.
_OWN = OF_PREDICTION.union(
    ("encoding", "pooling", "pair_order", "average_orders", "max_length", "truncation", "batch_size", "extra"),
    ("permute_labels", "head_dropout", "vector_dropout", "class_weights", "label_smoothing", "loss_weight"),
)


class Part(NamedTuple, Generic[Key]):
    """A task to train on, or its name. A request has the recipe as given, a run the recipe resolved for the task."""

    task: Key
    recipe: Recipe
    limit: int | None = None
    """Training rows; None is all."""


Parts = Mapping[str, Part[Task]]
"""The parts of a run by task name, in order."""


def first_of(parts: Parts) -> Part[Task]:
    """The part of the only task, or of the first of several.

    All recipes of a run share encoder and training settings, so the first will do. The settings that may differ between
    tasks are in :data:`_OWN`.
    """
    return next(iter(parts.values()))


@dataclass(frozen=True)
class RunRequest:
    """What to train. Equal requests on equal data and backbone are one run."""

    kind: Method
    parts: tuple[Part[Task], ...]
    """One task, or for joint training several."""
    seed: int
    adapters: tuple[Artifact, ...] = ()
    """The sources of a fusion, in its order, or of a merged adapter; for an adapter those of other tasks that may
    warm-start it, or the one that it continues."""
    in_turn: bool = False
    """Start from the adapter in ``adapters`` without choosing: it was named, or the run goes through tasks in turn."""
    tested: bool = True
    """Start from one of several ``adapters`` only if it explains significantly more than no adapter."""
    start: RunRecord | None = None
    """The fine-tuning to continue: for sequential fine-tuning, or before joint training. For full fine-tuning the
    linear probe (kind "frozen") of the same task whose head it starts with."""
    keep_weights: bool = False
    """Keep the trained weights of the whole model, because another run starts from them or they will predict. An
    adapter or a fusion always keeps only its artifact."""

    def __post_init__(self) -> None:
        check_seed(self.seed)
        assert not self.in_turn or (self.kind == "adapter" and len(self.adapters) == 1)

    @classmethod
    def single(cls, kind: Method, task: Task, recipe: Recipe, seed: int, limit: int | None = None, **rest: Any) -> Self:
        """The request to train for one task."""
        return cls(kind, (Part(task, recipe, limit),), seed, **rest)

    @property
    def probe(self) -> RunRecord | None:
        """The linear probe whose head the run starts with, if any."""
        return self.start if self.start is not None and KINDS[self.kind].takes == "head" else None

    @property
    def start_rule(self) -> str | None:
        """The part of the identity that says how an adapter's start was chosen; None: by a test, or not at all."""
        if self.in_turn:
            return "in turn"
        return "best" if self.adapters and not self.tested else None


def resolve_parts(request: RunRequest, workspace: Workspace) -> Parts:
    """The parts of ``request`` by task name, in order; checked to fit one model.

    Raises:
        PipelineError: a recipe does not fit its task. For joint training also: no task; a task named twice; recipes
            that differ in shared settings or train what tasks cannot share; in several processes gradient surgery,
            L2-SP of several tasks, or a task that trains nothing.
    """
    joint = KINDS[request.kind].is_joint
    ordered = sorted(request.parts, key=lambda part: part.task.name)
    parts = [part._replace(recipe=workspace.resolve(part.recipe, part.task, joint)) for part in ordered]
    if request.kind != "merge" and any(part.recipe.merge.rule != "none" for part in parts):
        raise PipelineError("merge: only a row of method merge in a study merges adapters: leave it out")
    if joint:
        if len(parts) == 1:
            # Nothing to mix, combine or split.
            inert = parts[0].recipe.changed(
                {"mixing": "simultaneous", "epoch_of": None, "gradient_surgery": "none", "split_layers": 0}
            )
            parts = [parts[0]._replace(recipe=inert)]
        raise_all(request.kind, list(_joint_problems(parts)) if parts else ["no task to train on"])
    return {part.task.name: part for part in parts}


def _joint_problems(parts: Sequence[Part[Task]]) -> Iterator[str]:
    names, recipes = [part.task.name for part in parts], [part.recipe for part in parts]
    for name in sorted(set(names)):
        if names.count(name) > 1:
            yield f"task '{name}' is named more than once"
    for trainable in sorted({recipe.trainable for recipe in recipes} - set(KINDS["multitask"].trains)):
        allowed = ", ".join(f"'{name}'" for name in KINDS["multitask"].trains)
        yield f"joint training cannot have trainable = '{trainable}': use one of {allowed}"
    for counted in sorted({recipe.joint.epoch_of for recipe in recipes if recipe.joint.epoch_of is not None}):
        if counted not in names:
            yield f"epoch_of: '{counted}' is none of the tasks ({', '.join(names)})"
    if process_count() > 1 and any(recipe.joint.gradient_surgery != "none" for recipe in recipes):
        yield "gradient_surgery works in one process only: launch one, or leave it out"
    # DDP expects no gradient for heads outside a step's last forward pass, but the penalty gives them one.
    if process_count() > 1 and len(parts) > 1 and any(recipe.l2_sp for recipe in recipes):
        yield "l2_sp of several tasks works in one process only: launch one, or leave it out"
    # DDP sums gradients at the end of a step's last backward pass, and such a task has none.
    idle = [part.task.name for part in parts if part.recipe.trainable == "head" and part.recipe.head == "cosine"]
    if process_count() > 1 and idle:
        yield f"{', '.join(idle)}: a cosine on a frozen backbone trains nothing, so launch one process, or leave it out"
    flat = {name: recipe.flat() for name, recipe in zip(names, recipes, strict=True)}
    for key in sorted(Recipe().flat().keys() - _OWN):
        values = {name: str(own[key]) for name, own in flat.items()}
        if len({*values.values()}) > 1:
            listed = ", ".join(f"{name}: {value}" for name, value in values.items())
            yield f"{key} must be the same for all tasks ({listed})"


class Trainable(Protocol[Record]):
    """A run that can be trained, and the record that it leaves."""

    workspace: Workspace

    @property
    def name(self) -> str: ...

    def finished(self) -> Record | None:
        """The record, if everything that the run leaves is still there."""

    def train(self) -> Record: ...


@dataclass(frozen=True)
class Made(Generic[Record]):
    """The record of a finished run."""

    record: Record
    is_new: bool
    """Whether it was trained now rather than found finished."""


def get_or_train(run: Trainable[Record], force: bool = False) -> Made[Record]:
    """The finished record: found, or made by training (from the last checkpoint, if there is one).

    Args:
        force: train again even if finished; resume a checkpoint only if a call with ``force`` wrote it.

    Raises:
        RunBusy: another command is training the run.
    """
    ledger = run.workspace.ledger
    if not force and (record := on_main_process(run.finished)) is not None:
        on_main_process(lambda: ledger.tidy(run.name))
        return Made(record, is_new=False)
    # If several processes train this run together, one holds the lock against other commands.
    with ExitStack() as held:
        on_main_process(lambda: held.enter_context(ledger.lock(run.name)))
        if force:
            on_main_process(lambda: ledger.begin_again(run.name))
        # Another command may have finished it between the first look and the lock.
        elif (record := on_main_process(run.finished)) is not None:
            return Made(record, is_new=False)
        record = run.train()
        on_main_process(lambda: ledger.drop_checkpoint(run.name))
    return Made(record, is_new=True)


@cache
def provenance() -> dict[str, Any]:
    """The commit of this code, whether it was changed, versions and hardware, as found by a process's first call."""
    commit, dirty = commit_of(Path(__file__).parent)
    return {
        "pipeline": VERSION,
        "commit": commit,
        "dirty": dirty,
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "transformers", "adapters")},
        "platform": platform.platform(),
        "hardware": hardware(process_count()),
        "processor": processor(),
        "processes": process_count(),
    }


def commit_of(folder: Path) -> tuple[str | None, bool | None]:
    """The commit of a folder's files, and whether any tracked file of the repository has changed since.

    Both are None if git tracks none of the folder's files, as in an environment within a checkout.
    """
    if not _git(folder, "ls-files", "."):
        return None, None
    return _git(folder, "rev-parse", "HEAD"), bool(_git(folder, "status", "--porcelain", "--untracked-files=no"))


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", folder, *arguments], capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
