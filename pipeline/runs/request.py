"""What is to be trained: the request, before anything is read or built, and its parts resolved for their tasks."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Self, TypeVar

from pipeline.data.tasks import Task
from pipeline.records.run_record import RunRecord
from pipeline.records.store import Artifact
from pipeline.runs.workspace import Workspace
from pipeline.settings.kinds import KINDS
from pipeline.settings.recipe import OF_PREDICTION, Recipe, check_seed
from pipeline.settings.rows import Method
from pipeline.system.errors import PipelineError, raise_all
from pipeline.training.process_group import process_count

Key = TypeVar("Key", str, Task)

# The settings that each task has of its own; the others concern the one model and its training.
_OWN = OF_PREDICTION.union(
    ("encoding", "pooling", "pair_order", "average_orders", "max_length", "truncation", "batch_size", "extra"),
    ("permute_labels", "head_dropout", "vector_dropout", "class_weights", "label_smoothing", "loss_weight"),
)


class Part(NamedTuple, Generic[Key]):
    """A task to train on, or its name. In a request its recipe is as it was given, in a run resolved for the task."""

    task: Key
    recipe: Recipe
    limit: int | None = None
    """Training rows; None is all."""


Parts = Mapping[str, Part[Task]]
"""What a run trains on: the part of each task by its name, in their order."""


def first_of(parts: Parts) -> Part[Task]:
    """The part of the only task, or of the first of several.

    In all that concerns the encoder and its training the recipes of a run agree, so the first says it for all; what a
    task may have of its own is in :data:`_OWN`.
    """
    return next(iter(parts.values()))


@dataclass(frozen=True)
class RunRequest:
    """What is to be trained. Equal requests on equal data and backbone are one run."""

    kind: Method
    parts: tuple[Part[Task], ...]
    """One task, or for joint training several."""
    seed: int
    adapters: tuple[Artifact, ...] = ()
    """The sources of a fusion, in its order, or of a merged adapter; for an adapter those of other tasks that it may be
    warm-started from, or the one that it continues."""
    in_turn: bool = False
    """An adapter starts as the one in ``adapters``, without a choice: it was named, or goes through tasks in turn."""
    start: RunRecord | None = None
    """The fine-tuning whose backbone is tuned further: of sequential fine-tuning, or before joint training. For full
    fine-tuning it is the linear probe (kind "frozen") of the same task whose head it starts with."""
    keep_weights: bool = False
    """Keep the trained weights of the whole model: another run starts from them, or they are to predict. What is kept
    of an adapter or a fusion is always its artifact alone."""

    def __post_init__(self) -> None:
        check_seed(self.seed)
        assert not self.in_turn or (self.kind == "adapter" and len(self.adapters) == 1)

    @classmethod
    def single(cls, kind: Method, task: Task, recipe: Recipe, seed: int, limit: int | None = None, **rest: Any) -> Self:
        """The request to train for one task."""
        return cls(kind, (Part(task, recipe, limit),), seed, **rest)

    @property
    def probe(self) -> RunRecord | None:
        """The linear probe whose head it starts with, if any."""
        return self.start if self.start is not None and KINDS[self.kind].takes == "head" else None

    def may_be_warm_started(self, recipe: Recipe) -> bool:
        """Whether ``adapters`` are those that the model may start as, by its resolved ``recipe``."""
        return bool(self.adapters) and (self.kind == "adapter" or recipe.form.warm_starts_own)


def resolve_parts(request: RunRequest, workspace: Workspace) -> Parts:
    """The parts of ``request`` by name of their task, in order; one model can be trained for all of them.

    Raises:
        PipelineError: a recipe does not fit its task; for joint training also: no task, one named twice, recipes that
            differ in more than a task may have of its own or that train what tasks cannot share; in several processes
            gradient surgery, L2-SP of several tasks, or a task that trains nothing.
    """
    joint = KINDS[request.kind].is_joint
    ordered = sorted(request.parts, key=lambda part: part.task.name)
    parts = [part._replace(recipe=workspace.resolve(part.recipe, part.task, joint)) for part in ordered]
    if request.kind != "merge" and any(part.recipe.merge.rule != "none" for part in parts):
        raise PipelineError("merge: only a row of method merge in a study merges adapters: leave it out")
    if joint:
        if len(parts) == 1:
            # There is nothing to mix, to combine or to split.
            inert = parts[0].recipe.changed(
                {
                    "mixing": "simultaneous",
                    "epoch_of": None,
                    "gradient_surgery": "none",
                    "split_layers": 0,
                }
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
    # Processes expect no gradient of heads that a step's last forward pass left out, and the penalty gives them one.
    if process_count() > 1 and len(parts) > 1 and any(recipe.l2_sp for recipe in recipes):
        yield "l2_sp of several tasks works in one process only: launch one, or leave it out"
    # Processes add up gradients at the end of a step's last backward pass, and such a task has none.
    idle = [part.task.name for part in parts if part.recipe.trainable == "head" and part.recipe.head == "cosine"]
    if process_count() > 1 and idle:
        yield f"{', '.join(idle)}: a cosine on a frozen backbone trains nothing, so launch one process, or leave it out"
    flat = {name: recipe.flat() for name, recipe in zip(names, recipes, strict=True)}
    for key in sorted(Recipe().flat().keys() - _OWN):
        values = {name: str(own[key]) for name, own in flat.items()}
        if len({*values.values()}) > 1:
            listed = ", ".join(f"{name}: {value}" for name, value in values.items())
            yield f"{key} must be the same for all tasks ({listed})"
