"""Workspace: where a command reads and writes, shared by all stages."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd

from pipeline.data.extra import add_extra, extra_rows
from pipeline.data.limits import check_limit
from pipeline.data.load import has_rows, has_test, load_all_rows, read_test_texts
from pipeline.data.task_data import TaskData
from pipeline.data.tasks import Task, find_task
from pipeline.data.tasks.extra import Extra
from pipeline.methods.registry import check_fits
from pipeline.models.backbone import Backbone, open_backbone
from pipeline.models.repository import family_of
from pipeline.records.ledger import Ledger
from pipeline.records.run_record import RunRecord
from pipeline.records.store import Artifact, Store
from pipeline.runs.weights import ARTIFACT_KINDS
from pipeline.settings.recipe import Recipe
from pipeline.settings.resolve import resolve
from pipeline.settings.sections import ScoredOn, ScoredRows
from pipeline.system.errors import PipelineError
from pipeline.system.streams import announce, notice
from pipeline.system.version import VERSION
from pipeline.training.devices import hardware, processor, resolve_precision
from pipeline.training.process_group import process_count

T = TypeVar("T")


@dataclass(frozen=True)
class Workspace:
    """The backbone, data, store and reports of one command.

    ``data`` is the folder of ``--data``, and ``more_data`` those that are searched after it. A task that is in none of
    them is read from its Hub data set. ``cache_gb`` bounds what is kept in memory of frozen layers' outputs; like
    ``checkpoint_seconds`` it is no part of a run's identity.
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
    """Choose by so many rows of each task, and score as many, the same for every run; part of a run's data. Rows that
    are held out of train are all scored."""
    scoring: ScoredRows = field(default_factory=ScoredRows)
    """Which are the validation and the test rows; part of a run's data."""
    more_data: tuple[Path, ...] = ()
    held_out: tuple[str, ...] = ()
    """Targets, on whose validation and test rows no other task trains."""
    _memory: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @cached_property
    def family(self) -> str:
        """The backbone's model type, for which its weights are not read."""
        return family_of(self.backbone_name)

    @cached_property
    def backbone(self) -> Backbone:
        announce(f"reading backbone {self.backbone_name}")
        return open_backbone(self.backbone_name)

    def backbone_for(self, *recipes: Recipe) -> Backbone:
        """The backbone as models of ``recipes`` read it: with its pooler if one of them pools by it."""
        if not any(recipe.pooling == "pooler" for recipe in recipes):
            return self.backbone
        return self._once(("pooler", self.backbone_name), self.backbone.with_pooler)

    @cached_property
    def store(self) -> Store:
        return Store(self.store_root)

    @cached_property
    def ledger(self) -> Ledger:
        return Ledger(self.reports)

    def _once(self, key: Any, make: Callable[[], T]) -> T:
        """What ``make`` returned when ``key`` was first asked for."""
        if key not in self._memory:
            self._memory[key] = make()
        return self._memory[key]

    def tell_once(self, text: str) -> None:
        """Say something on stderr that is true of the data, and so of every run of a study that reads them."""
        self._once(("told", text), lambda: notice(text))

    def on(self, backbone: str | None) -> Workspace:
        """The same with another backbone, which is read once however often it is asked for; None is its own."""
        if backbone is None or backbone == self.backbone_name:
            return self
        return self._once(("on", backbone), lambda: self._with_backbone(backbone))

    def apart_from(self, targets: Iterable[str]) -> Workspace:
        """The same, where no other task trains on the dev and test rows of these."""
        names = tuple(dict.fromkeys(self.task(name).name for name in targets))
        if names == self.held_out:
            return self
        other = replace(self, held_out=names)
        object.__setattr__(other, "backbone", self.backbone)
        return other

    def _with_backbone(self, name: str) -> Workspace:
        other = replace(self, backbone_name=name)
        object.__setattr__(other, "_memory", self._memory)  # rows are the same whatever reads them
        return other

    def task(self, name: str) -> Task:
        """A task by name, alias or file; read once a command."""
        return self._once(("task", name), lambda: find_task(name, *self.folders))

    @property
    def folders(self) -> tuple[Path, ...]:
        """Where a task is looked for, in this order."""
        return () if self.data is None else (self.data, *self.more_data)

    def data_of(self, task: Task) -> Path | None:
        """The first folder with rows of ``task``; None: its Hub data set, which is said where folders were given.

        Raises:
            PipelineError: a folder does not exist, or none has rows of a task without a Hub data set.
        """
        return self._once(("data", task.model_dump_json()), lambda: self._folder_of(task))

    def _folder_of(self, task: Task) -> Path | None:
        having = [folder for folder in self.folders if has_rows(task, folder)]  # looks at all: one may be misspelt
        if having or not self.folders:
            return having[0] if having else None
        listed = ", ".join(map(str, self.folders))
        if task.hub is None and len(self.folders) > 1:
            raise PipelineError(f"no rows of task '{task.name}' in {listed}: one must hold <task>/train and <task>/dev")
        if task.hub is None:
            return self.data  # what it lacks is said by whoever reads it
        source = f"its data set on the Hub, {task.hub.dataset}"
        notice(f"note: no rows of task '{task.name}' in {listed}: it is read from {source}")
        return None

    def resolve(self, recipe: Recipe, task: Task, joint: bool = False) -> Recipe:
        """The recipe as ``task`` is trained by it here; its extra tasks under their own names, not aliases."""
        key = self.backbone_name, recipe, task.model_dump_json(), joint
        return self._once(key, lambda: self._resolved(recipe, task, joint))

    def _resolved(self, recipe: Recipe, task: Task, joint: bool) -> Recipe:
        check_fits(recipe, self.family)
        named = [source.model_copy(update={"task": self.task(source.task).name}) for source in recipe.extra]
        own = recipe.model_copy(update={"extra": tuple(sorted(named, key=lambda source: source.task))})
        precision, backbone = resolve_precision(recipe.precision), self.backbone
        return resolve(own, task, precision, backbone.max_length, backbone.layers, joint)

    def finished(self, run: str, with_model: bool) -> RunRecord | None:
        """The ledger's record of ``run``; ``with_model`` only if its artifact or its weights are still there.

        A record stands without them. What was built on the artifact of one without a manifest cannot be identified
        (:meth:`adapter_of`): these are only found with their artifact.
        """
        record = self.ledger.find(run)
        if record is None or record.kind not in ARTIFACT_KINDS:
            if record is None or not with_model:
                return record
            # Weights without their hash: a kill came between the two files.
            return record if record.weights_sha256 and self.ledger.weights_file(run).is_file() else None
        if not with_model and record.manifest is not None:
            return record
        artifact = self.store.find_unchanged(run, record.artifact_digest)
        return None if artifact is None else record.model_copy(update={"artifact": str(artifact.folder)})

    def adapter_of(self, record: RunRecord) -> Artifact:
        """What a run that :meth:`finished` has found put into the store: whether it is still there or not."""
        manifest = record.manifest
        if manifest is not None:
            return Artifact(folder=self.store.root / manifest.place, manifest=manifest)
        artifact = self.store.find(record.run)
        assert artifact is not None
        return artifact

    def task_data(self, task: Task, limit: int | None, seed: int, extra: tuple[Extra, ...] = ()) -> TaskData:
        """Checked rows of a task; read once a command, however many runs use them and samples are drawn.

        Args:
            limit: training rows of the task, and of each source of extra data; None is all.
            extra: tasks whose training rows are added, without those that the task or a held-out one is scored on.
        """
        check_limit(limit)
        name = task.model_dump_json()
        if extra:
            return self._once((name, limit, seed, extra), lambda: self._with_extra(task, limit, seed, extra))
        whole = self._once(("usable", name), lambda: self._usable(task))
        if limit is None or limit >= len(whole.train):
            limit, seed = None, 0  # all rows are all rows

        def drawn() -> TaskData:
            sample = whole.sample(task, limit, seed, None)
            if self.scored_on(task) != "train":
                return sample
            return sample.choosing_in_train(task, self.scoring.share, self.scoring.seed)

        return self._once((name, limit, seed), drawn)

    def chooses_by_part(self, task: Task, dev: pd.DataFrame) -> bool:
        """Whether the validation rows ``dev`` are a part of the dev split, or were cut from train."""
        return self.scored_on(task) == "train" or len(dev) < len(self._read(task).dev)

    def held_out_rows(self, task: Task) -> pd.DataFrame:
        """All validation and test rows, however few of them :attr:`dev_limit` leaves.

        Where dev is scored, the test split is there for later, with labels or without.
        """
        return self._once(("held out", task.model_dump_json()), lambda: self._held_out_rows(task))

    def _held_out_rows(self, task: Task) -> pd.DataFrame:
        rows = self._read(task).held_out
        test = read_test_texts(task, self.data_of(task)) if self.scored_on(task) == "dev" else None
        return rows if test is None else pd.concat([rows, test], ignore_index=True)

    def _usable(self, task: Task) -> TaskData:
        check_limit(self.dev_limit, "--dev-limit", "row of dev")
        rows = self._without_held_out(task)
        if self.scored_on(task) == "half":
            rows = rows.halved(task, self.scoring.seed)
        # How many rows are held out of train is said by the scoring.
        test_limit = None if self.scored_on(task) == "held-out" else self.dev_limit
        return rows.sample(task, None, 0, self.dev_limit, test_limit)

    def _with_extra(self, task: Task, limit: int | None, seed: int, extra: tuple[Extra, ...]) -> TaskData:
        data, test = self.task_data(task, limit, seed), read_test_texts(task, self.data_of(task))
        others = [other for other in map(self.task, self.held_out) if other.name != task.name]
        for each in extra:
            source = self.task(each.task)
            data = add_extra(
                data,
                source.name,
                extra_rows(source, self._read(source).train, task, each),
                dev=pd.concat([self._read(task).held_out, data.dev]),
                test=test,
                held_out=[self.held_out_rows(other) for other in others],
                limit=limit,
                seed=seed,
            )
        return data

    def _without_held_out(self, task: Task) -> TaskData:
        others = [other for other in map(self.task, self.held_out) if other.name != task.name]
        return self.without_rows_of(others, task, self._read(task))  # what its own splits share is --drop-overlap's

    def without_rows_of(self, others: Iterable[Task], task: Task, data: TaskData) -> TaskData:
        """``data`` of ``task`` without the training rows whose text is held out by one of ``others``."""
        try:
            return data.without({other.name: self.held_out_rows(other) for other in others})
        except PipelineError as error:
            raise PipelineError(f"task '{task.name}': {error}") from None

    def scored_on(self, task: Task) -> ScoredOn:
        """What of :attr:`scoring` holds for a task.

        Where test is scored, a source that has no labelled test split is scored on dev: its score is no result.
        """
        names = (task.name, *task.aliases)
        rows = self.scoring.of(*names)
        if rows != "test" or not self.held_out or not {*names}.isdisjoint((*self.held_out, *self.scoring.tasks)):
            return rows
        key = ("has test", task.model_dump_json())
        return rows if self._once(key, lambda: has_test(task, self.data_of(task))) else "dev"

    def _read(self, task: Task) -> TaskData:
        """Its splits as they are published, but for training rows that are held out."""
        return self._once(("all", task.model_dump_json()), lambda: self._load(task))

    def _load(self, task: Task) -> TaskData:
        folder, is_test_scored = self.data_of(task), self.scored_on(task) == "test"
        announce(f"reading task {task.name} from {folder if folder is not None else 'the Hub'}")
        rows = load_all_rows(task, folder, drop_overlap=self.drop_overlap, test=is_test_scored)
        if self.scored_on(task) == "held-out":
            return rows.holding_out(task, self.scoring.size, self.scoring.seed)
        return rows


@cache
def provenance() -> dict[str, Any]:
    """What made a number: commit of this code and whether it was changed, versions, hardware."""
    here = Path(__file__).parent
    commit = _git(here, "rev-parse", "HEAD")
    return {
        "pipeline": VERSION,
        "commit": commit,
        "dirty": bool(_git(here, "status", "--porcelain")) if commit else None,
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "transformers", "adapters")},
        "platform": platform.platform(),
        "hardware": hardware(process_count()),
        "processor": processor(),
        "processes": process_count(),
    }


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", folder, *arguments], capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
