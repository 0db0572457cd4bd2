"""Ledger: the files of finished runs, record, predictions and curve, under ``<reports>/runs/<run>/``.

A run is finished when ``run.json`` is in place; it is written last, by rename. Anything else is unfinished.
"""

import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from heapq import nlargest
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from pandas.api.types import is_numeric_dtype

from pipeline.data.tables import write_table
from pipeline.records.run_record import RunRecord, TaskScore
from pipeline.system.atomic import clear_leftovers, make_folder, new_file, remove_folder, write_json
from pipeline.system.errors import PipelineError, writing
from pipeline.system.locks import is_held, locked
from pipeline.system.reading import ModelFiles, check_regular, present, reading

RECORD_FILE = re.compile(r"run\.json|(curve|attention)\.csv|predictions(-[a-z][a-z0-9_-]*)?\.parquet")
"""The names of the files that are a finished run's record."""

RUN_NAME = re.compile(r"[\w-]{1,64}")
"""What may be the name of a folder beside the others: a person's slip must not be read as a path."""


def train_again(run: str) -> str:
    """What a user should do about files of a run that are damaged, whichever command trained it."""
    return f"remove it (python -m pipeline runs remove {run} --force) and run the command again"


class RunBusy(PipelineError):
    """Another process is training the run."""


class Ledger:
    """The runs of one reports folder."""

    def __init__(self, reports: Path) -> None:
        self.root = reports / "runs"
        self._records = ModelFiles(RunRecord, "delete it, and the run is trained again")

    def folder(self, run: str) -> Path:
        return self.root / run

    def checkpoint_file(self, run: str) -> Path:
        return self.folder(run) / "checkpoint" / "state.safetensors"

    def weights_file(self, run: str) -> Path:
        return self.folder(run) / "weights.safetensors"

    def find(self, run: str) -> RunRecord | None:
        """The finished run called ``run``, or None; a :class:`PipelineError` if its run.json is damaged."""
        return self._records.read(self.folder(run) / "run.json") if RUN_NAME.fullmatch(run) else None

    def lineage(self, start: RunRecord | None) -> list[RunRecord]:
        """The runs that tuning one model on several tasks in turn went through up to ``start``, the first one first.

        Raises:
            PipelineError: one is no longer in the ledger.
        """
        steps: list[RunRecord] = []
        while start is not None:
            steps.insert(0, start)
            # Fine-tuning may have a linear probe for its source, which only gave its head.
            source = start.sources[0].run if start.sources and start.kind != "full" else None
            start = self.find(source) if source is not None else None
            if source is not None and start is None:
                raise PipelineError(f"run {source}, which run {steps[0].run} started from, is no longer in {self.root}")
        return steps

    def names(self) -> list[str]:
        """The runs that left anything, finished or not."""
        return sorted(folder.name for folder in self.root.iterdir()) if self.root.is_dir() else []

    def newest(self, most: int) -> list[str]:
        """Those of :meth:`names` whose folders changed last, ``most`` at most."""
        if not self.root.is_dir():
            return []
        changed: list[tuple[int, str]] = []
        with os.scandir(self.root) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):  # removed since, or a link to nothing
                    changed.append((entry.stat().st_mtime_ns, entry.name))
        return [name for _, name in nlargest(most, changed)]

    def records(self) -> tuple[dict[str, RunRecord], dict[str, str]]:
        """The finished runs by name, and by folder why other records cannot be read."""
        records, damaged = dict[str, RunRecord](), dict[str, str]()
        files = [self.folder(name) / "run.json" for name in self.names() if RUN_NAME.fullmatch(name)]
        for file, record in self._records.read_all(files).items():
            name = file.parent.name
            if isinstance(record, PipelineError):
                damaged[name] = str(record)
            elif record.run != name:
                damaged[name] = f"{file}: the record of run {record.run}: rename its folder to that, or delete it"
            else:
                records[name] = record
        return records, damaged

    def began(self, run: str) -> bool:
        """Whether a run called ``run`` left anything, finished or not."""
        return bool(RUN_NAME.fullmatch(run)) and self.folder(run).is_dir()

    def is_unfinished(self, run: str) -> bool:
        """Whether a run without a record is being trained, or left a checkpoint, kept weights or a part of its record.

        The lock alone does not count: a refused command leaves it, and so does further pretraining, whose record is in
        its output folder.
        """
        folder, checkpoint = self.folder(run), self.checkpoint_file(run).parent
        if not self.began(run) or present(folder / "run.json"):
            return False
        parts = [file for file in folder.glob("*") if RECORD_FILE.fullmatch(file.name)]
        return self.is_busy(run) or self.weights_file(run).is_file() or any((*parts, *checkpoint.glob("[!.]*")))

    def predictions(
        self, run: str, task: str | None = None, split: Literal["scored", "dev", "test"] = "scored"
    ) -> pd.DataFrame:
        """``id``, ``label``, ``prediction`` and class probabilities of a split, in its order.

        Args:
            task: by default the only task, or the first, that the run trained on.
            split: ``dev``, the validation rows; ``test``, rows that are only scored, if there are any; ``scored``, the
                latter where there are any, else dev.
        """
        record = self.find(run) if task is not None else None
        file = self._predictions_file(run, None if record and record.trained_on[0] == task else task)
        table = _read(pd.read_parquet, file, "label", "prediction", others=("id",))
        if "split" not in table:  # dev alone
            return table if split != "test" else table.iloc[:0]
        wanted = table.pop("split") == ("test" if split == "scored" else split)
        return table[wanted].reset_index(drop=True)

    def curve(self, run: str) -> pd.DataFrame:
        """``epoch``, ``loss``, ``dev``, ``learning_rate``, ``examples`` and ``seconds``, one row an evaluation.

        Epoch 0, where there is one, is the score before any step, and has no loss.
        """
        return _read(pd.read_csv, self.folder(run) / "curve.csv", "epoch", "dev")

    def attention(self, run: str) -> pd.DataFrame | None:
        """``layer``, ``site`` (attention or ffn), ``adapter``, ``weight`` of a fusion: means over tokens of dev."""
        file = self.folder(run) / "attention.csv"
        # A task may be called "null" or "nan".
        return _read(pd.read_csv, file, keep_default_na=False) if present(file) else None

    def _predictions_file(self, run: str, task: str | None = None) -> Path:
        return self.folder(run) / ("predictions.parquet" if task is None else f"predictions-{task}.parquet")

    @contextmanager
    def lock(self, run: str, wait: bool = False) -> Iterator[None]:
        """Keep two processes from training one run at once; a killed process gives its lock up by itself.

        What killed processes left of half-written files is cleared away. If another process is at it, ``wait`` for it
        or raise :class:`RunBusy`.
        """
        folder = self.folder(run)
        busy = RunBusy(f"run {run} is being trained by another process: wait for it, then try again")
        with locked(folder / ".lock", if_held=None if wait else busy):
            clear_leftovers(folder)
            clear_leftovers(self.checkpoint_file(run).parent)
            yield

    def is_busy(self, run: str) -> bool:
        """Whether another process holds the lock of ``run``."""
        return is_held(self.folder(run) / ".lock")

    def withdraw(self, run: str) -> None:
        """Let a run that is trained again count as unfinished, before files that its old record describes change."""
        folder = self.folder(run)
        with writing(folder):
            (folder / "run.json").unlink(missing_ok=True)

    def finish(
        self,
        record: RunRecord,
        curve: Sequence[Mapping[str, float | None]],
        predictions: Mapping[str, pd.DataFrame],
        attention: pd.DataFrame | None = None,
    ) -> None:
        """Write everything of a run, ``run.json`` last, and drop its checkpoint; ``predictions`` are by task."""
        folder = make_folder(self.folder(record.run))
        self.withdraw(record.run)
        write_table(pd.DataFrame(curve, dtype=object), folder / "curve.csv")
        for task, table in predictions.items():
            write_table(table, self._predictions_file(record.run, None if task == record.trained_on[0] else task))
        if attention is not None:
            write_table(attention, folder / "attention.csv")
        write_json(folder / "run.json", record.model_dump(mode="json", by_alias=True))
        self.drop_checkpoint(record.run)
        clear_leftovers(self.root)  # of a removal that was killed

    def files(self, run: str) -> list[Path]:
        """The files that are the record of a finished run, not its weights or checkpoint; none if it was removed."""
        folder = self.folder(run)
        with reading(folder), suppress(FileNotFoundError):
            return sorted(file for file in folder.iterdir() if RECORD_FILE.fullmatch(file.name))
        return []

    def add(self, run: str, files: Iterable[Path]) -> bool:
        """Add the record of a run that was finished elsewhere, a copy of its files, ``run.json`` last.

        Nothing is done if the run is finished here: False. A run that was begun here counts as finished then.
        """
        with self.lock(run):
            if self.find(run) is not None:
                return False
            for file in sorted(files, key=lambda file: file.name == "run.json"):
                with new_file(self.folder(run) / file.name) as temporary:
                    shutil.copyfile(file, temporary)
            self.drop_checkpoint(run)
        return True

    def add_scores(self, record: RunRecord, added: Mapping[str, tuple[TaskScore, pd.DataFrame]]) -> RunRecord:
        """Add what the model of a finished run is found to score on other tasks, predictions first.

        Nothing is written if the run was removed.
        """
        scores = {task: score for task, (score, _) in added.items()}
        with self.lock(record.run, wait=True):
            # Another process may have added some since the record was read, or removed it.
            current = self.find(record.run)
            known = record if current is None else current
            record = known.model_copy(update={"scores": {**known.scores, **scores}})
            if current is not None:
                for task, (_, table) in added.items():
                    write_table(table, self._predictions_file(record.run, task))
                write_json(self.folder(record.run) / "run.json", record.model_dump(mode="json", by_alias=True))
        return record

    def tidy(self, run: str) -> None:
        """Remove what a process that was killed just after it finished ``run`` left of it."""
        if self.checkpoint_file(run).parent.is_dir() and not self._is_marked(run):
            # Whoever trains it anew, or does not let us write, keeps the checkpoint.
            with suppress(PipelineError), self.lock(run):
                if not self._is_marked(run):
                    self.drop_checkpoint(run)

    def remove(self, run: str) -> None:
        """Delete a run, finished or not; raises :class:`RunBusy` while another process trains it."""
        folder = self.folder(run)
        with self.lock(run), writing(folder):
            if folder.is_symlink():
                folder.unlink()
                return
            clear_leftovers(self.root)
            remove_folder(folder)

    def begin_again(self, run: str) -> None:
        """Let a finished run be trained from its beginning, or go on where that was interrupted.

        What it finished before stays until it has finished again. Until then its checkpoint is not tidied away.
        """
        if not self._mark(run, "again").exists():
            self.drop_checkpoint(run)
            self._put_mark(run, "again")

    def make_up_for_model(self, run: str) -> None:
        """Keep the checkpoint of a run from being tidied away if it has a record, and is trained for its lost model."""
        if present(self.folder(run) / "run.json"):
            self._put_mark(run, "lost")

    def drop_checkpoint(self, run: str) -> None:
        """Let the run begin at its beginning."""
        shutil.rmtree(self.checkpoint_file(run).parent, ignore_errors=True)

    def _put_mark(self, run: str, why: Literal["again", "lost"]) -> None:
        mark = self._mark(run, why)
        make_folder(mark.parent)
        with writing(mark):
            mark.touch()

    def _is_marked(self, run: str) -> bool:
        """Whether the run is trained although it was finished."""
        return self._mark(run, "again").exists() or self._mark(run, "lost").exists()

    def _mark(self, run: str, why: Literal["again", "lost"]) -> Path:
        """Beside the checkpoint of a run that is trained although it was finished: by force, or for its lost model."""
        return self.checkpoint_file(run).with_name(why)


def _read(
    reader: Callable[..., pd.DataFrame], file: Path, *columns: str, others: Sequence[str] = (), **options: Any
) -> pd.DataFrame:
    """The table in ``file``, which must have ``columns`` of finite numbers, and ``others`` of anything."""
    remedy = train_again(file.parent.name)
    with reading(file, remedy):
        check_regular(file)
        table = reader(file, **options)
    for name in (*columns, *others):
        values = table.get(name)
        if values is None:
            raise PipelineError(f"{file}: column '{name}' is missing: {remedy}")
        if name in columns and not (is_numeric_dtype(values) and np.isfinite(values.to_numpy(np.float64)).all()):
            raise PipelineError(f"{file}: column '{name}' holds something else than finite numbers: {remedy}")
    return table
