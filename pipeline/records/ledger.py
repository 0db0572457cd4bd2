"""Ledger: the files of finished runs, record, predictions and curve, under ``<reports>/runs/<run>/``.

A run is finished when ``run.json`` is in place; it is written last, by rename. Anything else is unfinished.
"""

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

from pipeline.data.labels import holds_sets
from pipeline.data.tables import write_table
from pipeline.records.run_record import RunRecord, TaskScore
from pipeline.system.atomic import clear_leftovers, is_held, locked, make_folder, new_file, remove_folder, write_json
from pipeline.system.errors import PipelineError, writing
from pipeline.system.reading import ModelFiles, check_regular, present, reading

RECORD_FILE = re.compile(r"run\.json|(curve|attention)\.csv|predictions(-[a-z][a-z0-9_-]*)?\.parquet")
"""Names of the files that form a finished run's record."""

RUN_NAME = re.compile(r"[\w-]{1,64}")
"""Valid folder names here, so that a typing error is never read as a path."""


def train_again(run: str) -> str:
    """Advice to the user about damaged files of a run, whichever command trained it."""
    return f"remove it (python -m pipeline runs remove {run} --force) and run the command again"


class RunBusy(PipelineError):
    """Another process is training the run."""


class Ledger:
    """The runs of one reports folder.

    Args:
        remedy: what to do about a damaged record.
    """

    def __init__(self, reports: Path, remedy: str = "delete it, and the run is trained again") -> None:
        self.root, self._remedy = reports / "runs", remedy
        self._records = ModelFiles(RunRecord, remedy)

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
        """The runs in which one model was tuned on several tasks in turn, up to ``start``, first run first.

        Raises:
            PipelineError: one of them is no longer in the ledger.
        """
        steps: list[RunRecord] = []
        while start is not None:
            steps.insert(0, start)
            # The source of a fine-tuning may be a linear probe, which only gave its head.
            source = start.sources[0].run if start.sources and start.kind != "full" else None
            start = self.find(source) if source is not None else None
            if source is not None and start is None:
                raise PipelineError(f"run {source}, which run {steps[0].run} started from, is no longer in {self.root}")
        return steps

    def names(self) -> list[str]:
        """Runs that left any files, finished or not."""
        return sorted(folder.name for folder in self.root.iterdir()) if self.root.is_dir() else []

    def newest(self, most: int) -> list[str]:
        """At most ``most`` of :meth:`names`, those whose folders changed last."""
        if not self.root.is_dir():
            return []
        with reading(self.root):
            return [each.name for each in nlargest(most, self.root.iterdir(), lambda each: each.lstat().st_mtime_ns)]

    def records(self) -> tuple[dict[str, RunRecord], dict[str, str]]:
        """The finished runs by name, and for other folders why their records cannot be read."""
        records, damaged = dict[str, RunRecord](), dict[str, str]()
        for name in filter(RUN_NAME.fullmatch, self.names()):
            try:
                record = self.find(name)
            except PipelineError as error:
                damaged[name] = str(error)
                continue
            if record is not None and record.run != name:
                damaged[name] = f"{self.folder(name) / 'run.json'}: the record of run {record.run}: {self._remedy}"
            elif record is not None:
                records[name] = record
        return records, damaged

    def began(self, run: str) -> bool:
        """Whether a run called ``run`` left any files, finished or not."""
        return bool(RUN_NAME.fullmatch(run)) and self.folder(run).is_dir()

    def is_unfinished(self, run: str) -> bool:
        """Whether a run without a record is in training, or left a checkpoint, weights or part of a record.

        The lock alone does not count: a refused command leaves one, and so does further pretraining, which keeps its
        record in its output folder.
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
            task: by default the only or first task that the run trained on.
            split: ``dev``, the validation rows; ``test``, rows that are only scored, if any; ``scored``: test if there
                is one, else dev.
        """
        record = self.find(run) if task is not None else None
        file = self._predictions_file(run, None if record and record.trained_on[0] == task else task)
        table = _read(pd.read_parquet, file, "label", "prediction", others=("id",))
        if "split" not in table:  # dev alone
            return table if split != "test" else table.iloc[:0]
        wanted = table.pop("split") == ("test" if split == "scored" else split)
        return table[wanted].reset_index(drop=True)

    def curve(self, run: str) -> pd.DataFrame:
        """``epoch``, ``loss``, ``dev``, ``learning_rate``, ``examples`` and ``seconds``, one row per evaluation.

        Epoch 0, if present, is the score before the first step, without a loss.
        """
        return _read(pd.read_csv, self.folder(run) / "curve.csv", "epoch", "dev")

    def attention(self, run: str) -> pd.DataFrame | None:
        """``layer``, ``site`` (attention or ffn), ``adapter``, ``weight`` of a fusion: means over the tokens of dev."""
        file = self.folder(run) / "attention.csv"
        # so that a task may be called "null" or "nan"
        return _read(pd.read_csv, file, keep_default_na=False) if present(file) else None

    def _predictions_file(self, run: str, task: str | None = None) -> Path:
        return self.folder(run) / ("predictions.parquet" if task is None else f"predictions-{task}.parquet")

    @contextmanager
    def lock(self, run: str, wait: bool = False) -> Iterator[None]:
        """Lock a run so that only one process trains it; the lock of a killed process is released by itself.

        Also clears half-written files of killed processes. If another process holds the lock, ``wait`` for it or raise
        :class:`RunBusy`.
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
        """Mark a run that is trained again as unfinished, before the files that its old record describes change."""
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
        """Write all files of a run, ``run.json`` last, and drop its checkpoint; ``predictions`` are by task."""
        folder = make_folder(self.folder(record.run))
        self.withdraw(record.run)
        write_table(pd.DataFrame(curve, dtype=object), folder / "curve.csv")
        for task, table in predictions.items():
            write_table(table, self._predictions_file(record.run, None if task == record.trained_on[0] else task))
        if attention is not None:
            write_table(attention, folder / "attention.csv")
        write_json(folder / "run.json", record.model_dump(mode="json", by_alias=True))
        self.drop_checkpoint(record.run)

    def files(self, run: str) -> list[Path]:
        """The files of a finished run's record, without weights and checkpoint; none if it was removed."""
        folder = self.folder(run)
        with reading(folder), suppress(FileNotFoundError):
            return sorted(file for file in folder.iterdir() if RECORD_FILE.fullmatch(file.name))
        return []

    def add(self, run: str, files: Iterable[Path]) -> bool:
        """Add the record of a run that finished elsewhere by copying its files, ``run.json`` last.

        Returns False, and does nothing, if the run is finished here. A run that was begun here is then finished.
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
        """Add a finished run's scores on other tasks, predictions first.

        Nothing is written if the run was removed.
        """
        scores = {task: score for task, (score, _) in added.items()}
        with self.lock(record.run, wait=True):
            # Another process may have added some, or removed the run, since the record was read.
            current = self.find(record.run)
            known = record if current is None else current
            record = known.model_copy(update={"scores": {**known.scores, **scores}})
            if current is not None:
                for task, (_, table) in added.items():
                    write_table(table, self._predictions_file(record.run, task))
                write_json(self.folder(record.run) / "run.json", record.model_dump(mode="json", by_alias=True))
        return record

    def remove(self, run: str) -> None:
        """Delete a run, finished or not; raises :class:`RunBusy` if another process is training it."""
        with self.lock(run), writing(self.folder(run)):
            remove_folder(self.folder(run))

    def begin_again(self, run: str) -> None:
        """Prepare to train a finished run again from the start, or to resume such a training.

        The old record stays until the run finishes again.
        """
        mark = self.checkpoint_file(run).with_name("again")
        if not mark.exists():
            self.drop_checkpoint(run)
            make_folder(mark.parent)
            with writing(mark):
                mark.touch()

    def tidy(self, run: str) -> None:
        """Remove what a process left that was killed when it had just finished the run, where that is possible."""
        clear_leftovers(self.folder(run))
        checkpoint, record = self.checkpoint_file(run), self.folder(run) / "run.json"
        if not checkpoint.parent.exists():
            return
        with suppress(PipelineError), self.lock(run):
            # The run is trained again with --force (then it is marked), or because its model was lost.
            is_needed = checkpoint.with_name("again").exists()
            if checkpoint.exists() and record.exists():
                is_needed |= checkpoint.stat().st_mtime > record.stat().st_mtime
            if not is_needed:
                self.drop_checkpoint(run)

    def drop_checkpoint(self, run: str) -> None:
        """Delete the checkpoint, so that the run starts from the beginning."""
        shutil.rmtree(self.checkpoint_file(run).parent, ignore_errors=True)


def _read(
    reader: Callable[..., pd.DataFrame], file: Path, *columns: str, others: Sequence[str] = (), **options: Any
) -> pd.DataFrame:
    """Read the table in ``file``, with ``columns`` of finite numbers or label sets, and ``others`` of any type."""
    remedy = train_again(file.parent.name)
    with reading(file, remedy):
        check_regular(file)
        table = reader(file, **options)
    for name in (*columns, *others):
        values = table.get(name)
        if values is None:
            raise PipelineError(f"{file}: column '{name}' is missing: {remedy}")
        is_finite = is_numeric_dtype(values) and np.isfinite(values.to_numpy(np.float64)).all()
        if name in columns and not (is_finite or holds_sets(values)):
            raise PipelineError(f"{file}: column '{name}' holds something else than finite numbers: {remedy}")
    return table
