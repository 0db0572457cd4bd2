"""The splits of tasks as one command reads them: rows to train on, to select by, and to score."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from pipeline.data.extra import extra_rows
from pipeline.data.load import has_labelled_test, has_rows, load_all_rows, read_test_texts
from pipeline.data.task_data import TaskData
from pipeline.data.tasks import Task, find_task
from pipeline.data.tasks.extra import Extra
from pipeline.settings.study import ScoredOn, ScoredRows
from pipeline.system.errors import PipelineError
from pipeline.system.memo import Memo
from pipeline.system.streams import announce, notice


@dataclass(frozen=True)
class Splits:
    """Reads tasks and divides their rows. Reads each task once, however many runs and samples use it."""

    folders: tuple[Path, ...] = ()
    """Folders to search for a task, in order. A task that is in none is read from its Hub data set."""
    drop_overlap: bool = False
    dev_limit: int | None = None
    scoring: ScoredRows = field(default_factory=ScoredRows)
    held_out: tuple[str, ...] = ()
    """Targets whose validation and test rows no other task trains on."""
    _memo: Memo = field(default_factory=Memo, init=False, repr=False, compare=False)

    def task(self, name: str) -> Task:
        """A task by name, alias or file."""
        return self._memo.once(("task", name), lambda: find_task(name, *self.folders))

    def published(self, task: Task) -> TaskData:
        """The rows of its published splits; test only if it is scored."""
        is_test_scored = self.scored_on(task) == "test"
        key = ("rows", task.model_dump_json(), is_test_scored)
        return self._memo.once(key, lambda: self._load(task, is_test_scored))

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

    def folder_of(self, task: Task) -> Path | None:
        """The first folder with rows of ``task``; None for its Hub data set, with a note if folders were given.

        Raises:
            PipelineError: a folder does not exist, or no folder has rows of a task without a Hub data set.
        """
        return self._memo.once(("folder", task.model_dump_json()), lambda: self._folder_of(task))

    def scored_on(self, task: Task) -> ScoredOn:
        """Which split :attr:`scoring` selects for a task.

        If test is scored, a source without a labelled test split is scored on dev, since its score is no result.
        """
        names = (task.name, *task.aliases)
        rows = self.scoring.of(*names)
        if rows != "test" or not self.held_out or not {*names}.isdisjoint((*self.held_out, *self.scoring.tasks)):
            return rows
        key = ("has test", task.model_dump_json())
        return rows if self._memo.once(key, lambda: has_labelled_test(task, self.folder_of(task))) else "dev"

    def chooses_by_part(self, task: Task, dev: pd.DataFrame) -> bool:
        """Whether the validation rows ``dev`` are only part of the dev split, or were cut from train."""
        return self.scored_on(task) == "train" or len(dev) < len(self._read(task).dev)

    def held_out_rows(self, task: Task) -> pd.DataFrame:
        """All validation and test rows, regardless of :attr:`dev_limit`.

        If dev is scored, this includes the test split, labelled or not, so that it stays usable later.
        """
        return self._memo.once(("held out", task.model_dump_json()), lambda: self._held_out_rows(task))

    def without_rows_of(self, others: Iterable[Task], task: Task, data: TaskData) -> TaskData:
        """``data`` of ``task`` without training rows whose text ``others`` hold out."""
        held_out = {other.name: self.held_out_rows(other) for other in others}
        try:
            return data.without(held_out)
        except PipelineError as error:
            raise PipelineError(f"task '{task.name}': {error}") from None

    def _folder_of(self, task: Task) -> Path | None:
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

    def _held_out_rows(self, task: Task) -> pd.DataFrame:
        rows = self._read(task).held_out
        test = read_test_texts(task, self.folder_of(task)) if self.scored_on(task) == "dev" else None
        return rows if test is None else pd.concat([rows, test], ignore_index=True)

    def _whole(self, task: Task) -> TaskData:
        return self._memo.once(("usable", task.model_dump_json()), lambda: self._usable(task))

    def _usable(self, task: Task) -> TaskData:
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

    def _read(self, task: Task) -> TaskData:
        """Its published splits, minus the training rows that are dropped or held out."""
        return self._memo.once(("all", task.model_dump_json()), lambda: self._divided(task))

    def _divided(self, task: Task) -> TaskData:
        rows = self.published(task)
        if self.drop_overlap:
            rows = rows.without({task.name: rows.held_out})
        if self.scored_on(task) == "held-out":
            return rows.holding_out(task, self.scoring.size, self.scoring.seed)
        return rows

    def _load(self, task: Task, is_test_scored: bool) -> TaskData:
        folder = self.folder_of(task)
        announce(f"reading task {task.name} from {folder if folder is not None else 'the Hub'}")
        return load_all_rows(task, folder, test=is_test_scored)
