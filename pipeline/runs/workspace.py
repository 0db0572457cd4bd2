"""What a command gives its runs: where it reads and writes, how it divides the rows of tasks, and what it trains."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, wraps
from pathlib import Path
from typing import Any, Generic, NamedTuple, Self, TypeVar

import pandas as pd

from pipeline.data.task_data import TaskData, extra_rows, has_labelled_test, has_rows, load_all_rows, read_test_texts
from pipeline.data.tasks import Extra, Task, find_task
from pipeline.methods.registry import check_fits
from pipeline.models.backbone import Backbone, configuration, open_backbone
from pipeline.records.ledger import Ledger
from pipeline.records.run_record import RunRecord
from pipeline.records.store import Artifact, Store
from pipeline.settings.kinds import KINDS, Method
from pipeline.settings.recipe import OF_PREDICTION, Recipe
from pipeline.settings.resolve import resolve
from pipeline.settings.study import ScoredOn, ScoredRows
from pipeline.system.errors import PipelineError, raise_all
from pipeline.system.process import process_count
from pipeline.system.streams import announce, notice
from pipeline.training.devices import resolve_precision

Result = TypeVar("Result")


class Memo:
    """Results by key, kept for the lifetime of the object that owns them."""

    def __init__(self) -> None:
        self._results: dict[Any, Any] = {}

    def once(self, key: Any, make: Callable[[], Result]) -> Result:
        """The result of ``make`` from the first call with ``key``."""
        if key not in self._results:
            self._results[key] = make()
        return self._results[key]


Key = TypeVar("Key", str, Task)

# The settings that may differ between the tasks of a run; the others concern the one model and its training.
_OWN = OF_PREDICTION.union(
    ("encoding", "pooling", "pair_order", "average_orders", "max_length", "truncation", "batch_size", "extra"),
    ("permute_labels", "head_dropout", "vector_dropout", "class_weights", "label_smoothing", "loss_weight"),
)


@dataclass(frozen=True)
class Workspace:
    """The backbone, data, store and reports of one command.

    ``data`` is the folder of ``--data``; ``more_data`` are searched after it. ``cache_gb`` bounds the cached outputs of
    frozen layers; like ``checkpoint_seconds`` it does not affect a run's identity.
    """

    backbone_name: str
    data: Path | None
    store_root: Path
    reports: Path
    drop_overlap: bool = False
    track: str | None = None
    checkpoint_seconds: float = 60.0
    cache_gb: float = 2.0
    dev_limit: int | None = None
    """Number of rows of each task to select by, and to score, the same for every run; part of a run's data. Rows held
    out of train are all scored."""
    scoring: ScoredRows = field(default_factory=ScoredRows)
    """Which rows validate and which test; part of a run's data."""
    more_data: tuple[Path, ...] = ()
    held_out: tuple[str, ...] = ()
    """Targets whose validation and test rows no other task trains on."""
    is_study: bool = False
    """Whether a study trained the adapters that runs start from or fuse, which keeps them from its targets' rows."""
    _memo: Memo = field(default_factory=Memo, init=False, repr=False, compare=False)

    @cached_property
    def family(self) -> str:
        """The backbone's model type, found without reading its weights."""
        return str(configuration(self.backbone_name).model_type)

    @cached_property
    def backbone(self) -> Backbone:
        announce(f"reading backbone {self.backbone_name}")
        return open_backbone(self.backbone_name)

    def backbone_for(self, *recipes: Recipe) -> Backbone:
        """The backbone for models of ``recipes``: with its pooler if one of them pools by it."""
        if not any(recipe.pooling == "pooler" for recipe in recipes):
            return self.backbone
        return self._memo.once(("pooler", self.backbone_name), self.backbone.with_pooler)

    @cached_property
    def splits(self) -> Splits:
        """The rows of tasks, each task read once per command."""
        return Splits(self)

    @cached_property
    def store(self) -> Store:
        return Store(self.store_root)

    @cached_property
    def ledger(self) -> Ledger:
        return Ledger(self.reports)

    def task(self, name: str) -> Task:
        """A task by name, alias or file."""
        return self.splits.task(name)

    def tell_once(self, text: str, about: object = None) -> None:
        """Say once on stderr what is true of the data, and so of every run that reads them.

        Args:
            about: only the first text about the same thing is said; by default the text itself.
        """
        self._memo.once(("told", about or text), lambda: notice(text))

    def on(self, backbone: str | None) -> Workspace:
        """This workspace with another backbone, which is read only once; None keeps the present one."""
        if backbone is None or backbone == self.backbone_name:
            return self
        other = self._memo.once(("on", backbone), lambda: replace(self, backbone_name=backbone))
        # The rows, and the notes about them, do not depend on the backbone.
        vars(other).update(splits=self.splits, _memo=self._memo)
        return other

    def apart_from(self, targets: Iterable[str]) -> Workspace:
        """This workspace, with the validation and test rows of ``targets`` closed to the training of other tasks."""
        names = tuple(dict.fromkeys(self.task(name).name for name in targets))
        if names == self.held_out:
            return self
        other = replace(self, held_out=names)
        vars(other).update(backbone=self.backbone)
        return other

    def resolve(self, recipe: Recipe, task: Task, joint: bool = False) -> Recipe:
        """``recipe`` resolved for training ``task`` here, with its extra tasks by name instead of alias."""

        def resolved() -> Recipe:
            check_fits(recipe, self.family)
            named = [source.model_copy(update={"task": self.task(source.task).name}) for source in recipe.extra]
            own = recipe.model_copy(update={"extra": tuple(sorted(named, key=lambda source: source.task))})
            precision, backbone = resolve_precision(recipe.precision), self.backbone
            return resolve(own, task, precision, backbone.max_length, backbone.layers, joint)

        return self._memo.once((self.backbone_name, recipe, task.model_dump_json(), joint), resolved)

    def finished(self, run: str, with_model: bool) -> RunRecord | None:
        """The ledger's record of ``run``; with ``with_model`` only if its artifact or its weights are still there."""
        record = self.ledger.find(run)
        if record is None or not with_model:
            return record
        if KINDS[record.kind].artifact is None:
            # Weights without their hash: killed between writing the two files.
            return record if record.weights_sha256 and self.ledger.weights_file(run).is_file() else None
        artifact = self.store.find_unchanged(run, record.artifact_digest)
        # An artifact that lost a file counts as lost, so its run is trained again; elsewhere the file is reported.
        if artifact is None or not artifact.is_whole:
            return None
        return record.model_copy(update={"artifact": str(artifact.folder)})

    def adapter_of(self, record: RunRecord) -> Artifact:
        """The artifact that a run put into the store, even if it is no longer there."""
        assert record.manifest is not None
        return Artifact(folder=self.store.root / record.manifest.place, manifest=record.manifest)


def _once(method: Callable[[Splits, Task], Result]) -> Callable[[Splits, Task], Result]:
    """``method``, but each task's result is remembered."""

    @wraps(method)
    def remembered(splits: Splits, task: Task) -> Result:
        return splits._memo.once((method.__name__, task.model_dump_json()), lambda: method(splits, task))

    return remembered


class Splits:
    """Reads tasks and divides their rows, as a workspace says. Reads each task once, however many runs and samples use
    it.

    ``folders`` are searched for a task in order. A task that is in none is read from its Hub data set.
    """

    def __init__(self, workspace: Workspace) -> None:
        self.folders = () if workspace.data is None else (workspace.data, *workspace.more_data)
        self.drop_overlap, self.dev_limit = workspace.drop_overlap, workspace.dev_limit
        self.scoring, self.held_out, self._memo = workspace.scoring, workspace.held_out, Memo()

    def task(self, name: str) -> Task:
        """A task by name, alias or file."""
        return self._memo.once(("task", name), lambda: find_task(name, *self.folders))

    @_once
    def published(self, task: Task) -> TaskData:
        """The rows of its published splits; test only if it is scored."""
        is_test_scored, folder = self.scored_on(task) == "test", self.folder_of(task)
        announce(f"reading task {task.name} from {folder if folder is not None else 'the Hub'}")
        return load_all_rows(task, folder, test=is_test_scored)

    def of(self, task: Task, limit: int | None, seed: int, extra: tuple[Extra, ...] = ()) -> TaskData:
        """Checked rows of a task.

        Args:
            limit: training rows of the task, and of each source of extra data; None is all.
            extra: tasks whose training rows are added, except rows that the task or a held-out one is scored on.
        """
        name = task.model_dump_json()
        if extra:
            return self._memo.once((name, limit, seed, extra), lambda: self._with_extra(task, limit, seed, extra))
        whole = self._whole(task)
        if limit is None or limit >= len(whole.train):
            limit, seed = None, 0  # without a limit nothing is drawn

        def drawn() -> TaskData:
            sample = whole.sample(task, limit, seed, None)
            if self.scored_on(task) != "train":
                return sample
            parts = sample.choosing_in_train(task, self.scoring.share, self.scoring.seed)
            return parts.sample(task, None, 0, self.dev_limit)  # the test rows, which were dev, are limited already

        return self._memo.once((name, limit, seed), drawn)

    def rows_to_draw(self, task: Task) -> int:
        """How many training rows a limit draws from, including validation rows if these are cut from train."""
        return len(self._whole(task).train)

    @_once
    def folder_of(self, task: Task) -> Path | None:
        """The first folder with rows of ``task``; None for its Hub data set, with a note if folders were given.

        Raises:
            PipelineError: a folder does not exist, or no folder has rows of a task without a Hub data set.
        """
        having = [folder for folder in self.folders if has_rows(task, folder)]  # checks all, since one may be misspelt
        if having or not self.folders:
            return having[0] if having else None
        listed = ", ".join(map(str, self.folders))
        if task.hub is None and len(self.folders) > 1:
            raise PipelineError(f"no rows of task '{task.name}' in {listed}: one must have <task>/train and <task>/dev")
        if task.hub is None:
            return self.folders[0]  # whoever reads it reports what it lacks
        source = f"its data set on the Hub, {task.hub.dataset}"
        notice(f"note: no rows of task '{task.name}' in {listed}: it is read from {source}")
        return None

    def scored_on(self, task: Task) -> ScoredOn:
        """Which split :attr:`scoring` selects for a task.

        If test is scored, a source without a labelled test split is scored on dev, since its score is no result.
        """
        names = (task.name, *task.aliases)
        rows = self.scoring.of(*names)
        if rows != "test" or not self.held_out or not {*names}.isdisjoint((*self.held_out, *self.scoring.tasks)):
            return rows
        return rows if self._has_test(task) else "dev"

    @_once
    def _has_test(self, task: Task) -> bool:
        return has_labelled_test(task, self.folder_of(task))

    def chooses_by_part(self, task: Task, dev: pd.DataFrame) -> bool:
        """Whether the validation rows ``dev`` are only part of the dev split, or were cut from train."""
        return self.scored_on(task) == "train" or len(dev) < len(self._read(task).dev)

    @_once
    def held_out_rows(self, task: Task) -> pd.DataFrame:
        """All validation and test rows, regardless of :attr:`dev_limit`.

        If dev is scored, this includes the test split, labelled or not, so that it stays usable later.
        """
        rows = self._read(task).held_out
        test = read_test_texts(task, self.folder_of(task)) if self.scored_on(task) == "dev" else None
        return rows if test is None else pd.concat([rows, test], ignore_index=True)

    def without_rows_of(self, others: Iterable[Task], task: Task, data: TaskData) -> TaskData:
        """``data`` of ``task`` without training rows whose text ``others`` hold out."""
        held_out = {other.name: self.held_out_rows(other) for other in others}
        try:
            return data.without(held_out)
        except PipelineError as error:
            raise PipelineError(f"task '{task.name}': {error}") from None

    @_once
    def _whole(self, task: Task) -> TaskData:
        rows = self.without_rows_of(self._held_out_but(task), task, self._read(task))
        if self.scored_on(task) == "half":
            rows = rows.halved(task, self.scoring.seed)
        # the scoring reports how many rows are held out of train
        test_limit = None if self.scored_on(task) == "held-out" else self.dev_limit
        return rows.sample(task, None, 0, self.dev_limit, test_limit)

    def _with_extra(self, task: Task, limit: int | None, seed: int, extra: tuple[Extra, ...]) -> TaskData:
        data, test = self.of(task, limit, seed), read_test_texts(task, self.folder_of(task))
        scored = [("in_dev", self._read(task).held_out), ("in_dev", data.dev)]
        scored += [("in_test", test)] if test is not None else []
        scored += [("in_other_dev", self.held_out_rows(other)) for other in self._held_out_but(task)]
        for each in extra:
            source = self.task(each.task)
            rows = extra_rows(source, self._read(source).train, task, each)
            data = data.adding(source.name, rows, scored, limit, seed)
        return data

    def _held_out_but(self, task: Task) -> list[Task]:
        """The held-out targets except ``task``: overlaps within its splits are left to ``--drop-overlap``."""
        return [other for other in map(self.task, self.held_out) if other.name != task.name]

    @_once
    def _read(self, task: Task) -> TaskData:
        """Its published splits, minus the training rows that are dropped or held out."""
        rows = self.published(task)
        if self.drop_overlap:
            rows = rows.without({task.name: rows.held_out})
        if self.scored_on(task) == "held-out":
            return rows.holding_out(task, self.scoring.size, self.scoring.seed)
        return rows


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
    def is_warm_started(self) -> bool:
        """Whether it is an adapter that starts from a trained one, or may do so."""
        return self.kind == "adapter" and bool(self.adapters)

    @property
    def start_rule(self) -> str | None:
        """The part of the identity that says how an adapter's start was chosen; None: by a test, or not at all."""
        if self.in_turn:
            return "in turn"
        return "best" if self.adapters and not self.tested else None


def resolve_parts(request: RunRequest, workspace: Workspace) -> Parts:
    """The parts of ``request`` by task name, in order; checked to fit one model.

    Raises:
        PipelineError: a recipe does not fit its task. For joint training also: recipes that differ in shared settings;
            in several processes gradient surgery, L2-SP of several tasks, or a task that trains nothing.
    """
    joint = KINDS[request.kind].is_joint
    ordered = sorted(request.parts, key=lambda part: part.task.name)
    given = [part.recipe.warm_started if request.is_warm_started else part.recipe for part in ordered]
    recipes = [workspace.resolve(recipe, part.task, joint) for recipe, part in zip(given, ordered, strict=True)]
    parts = [part._replace(recipe=recipe) for part, recipe in zip(ordered, recipes, strict=True)]
    if request.kind != "merge" and any(part.recipe.merge.rule != "none" for part in parts):
        raise PipelineError("merge: only a row of method merge in a study merges adapters: leave it out")
    if joint:
        if len(parts) == 1:
            # Nothing to mix, combine or split.
            inert = parts[0].recipe.changed(
                {"mixing": "simultaneous", "epoch_of": None, "gradient_surgery": "none", "split_layers": 0}
            )
            parts = [parts[0]._replace(recipe=inert)]
        raise_all(request.kind, list(_joint_problems(parts)))
    return {part.task.name: part for part in parts}


def _joint_problems(parts: Sequence[Part[Task]]) -> Iterator[str]:
    names, recipes = [part.task.name for part in parts], [part.recipe for part in parts]
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
