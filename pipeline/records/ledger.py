"""Ledger: finished runs with their scores, predictions, cost and provenance, under ``<reports>/runs/<run>/``.

A run is finished when ``run.json`` is in place; it is written last, by rename. Anything else is unfinished.
"""

import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from heapq import nlargest
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
import pandas as pd
from pandas.api.types import is_numeric_dtype
from pydantic import BaseModel, Field, model_validator

from pipeline.data.tables import write_table
from pipeline.data.task_data import Added
from pipeline.data.tasks import Metric, Name
from pipeline.records.older import upgraded
from pipeline.records.store import Manifest
from pipeline.records.store import SourceRun as SourceRun
from pipeline.settings.recipe import Recipe, SharedRecipe
from pipeline.settings.rows import Method
from pipeline.system.atomic import canonical_json, clear_leftovers, make_folder, new_file, sha256_text, write_json
from pipeline.system.errors import PipelineError, writing
from pipeline.system.locks import is_held, locked
from pipeline.system.model_files import ModelFiles
from pipeline.system.reading import check_regular, present, reading

SCHEMA = 5
"""Part of every run's name: raised when equal settings come to train otherwise or are identified otherwise, so that
unlike runs are not mixed. Records of earlier versions are read, but the runs they describe are trained again.

2: few rows are shuffled, not sorted by length; modules beside a tuned backbone have their own learning rate.
3: all tasks of a run are described alike.
4: a CPU trains on batches without padding, and draws dropout from fewer random words.
5: these batches have a multiple of 32 tokens; warm starts, and gates beside them, are chosen otherwise.
"""

Kind = Method
"""What a run is: the method of the row that it is for."""
Reading = Literal["same", "probability", "middle", "cosine"]
"""As it is; a probability as a score; a score as a class, above the middle of its range or not; by the other task's own
head, which is a cosine and has no weights."""


# Bounded, so that products and sums of them are finite.
Count = Annotated[int, Field(ge=0, le=10**15)]
Amount = Annotated[float, Field(ge=0, le=1e15)]


class RunBusy(PipelineError):
    """Another process is training the run."""


class Cost(BaseModel, frozen=True):
    trainable_parameters: Count
    seconds: Amount = Field(description="choice of sources, training and evaluation, without start-up")
    examples_per_second: Amount = Field(description="training steps alone")
    peak_memory_mb: Amount


class Parameters(BaseModel, frozen=True):
    """What a run's model is made of, to be added up to what must be stored."""

    backbone: Count = Field(description="of the pretrained encoder, without adapters")
    head: Count = Field(description="of the heads")
    model: Count | None = Field(None, description="of the whole model, frozen ones too; absent from older records")


class TaskScore(BaseModel, frozen=True):
    """A run's model on one task."""

    metric: Metric
    dev: float = Field(description="the metric on dev, the validation rows, at the kept epoch")
    rows: Count = Field(description="dev rows")
    test: float | None = Field(None, description="the metric on the test rows, where dev only chooses")
    test_rows: Count = Field(0, description="test rows, where dev only chooses")
    start: float | None = Field(None, description="the metric on these before the first step, where that is scored")
    recipe: SharedRecipe | None = Field(None, description="how the run trained on the task; None: it did not")
    train_rows: Count = Field(0, description="training rows, where it did")
    limit: int | None = Field(None, description="what these were limited to, without those added from other tasks")
    dev_in_train: Count = Field(0, description="dev rows that are also in train")
    test_in_train: Count = Field(0, description="test rows that are also in train, where dev only chooses")
    added: dict[Name, Added] = Field({}, description="training rows of other tasks, and what was left out of them")
    reading: Reading | None = Field(None, description="how a model that did not train on the task is read on it")
    dev_rows: str | None = Field(
        None, description="fingerprint of the rows that are scored, where others may come to be"
    )
    before: float | None = Field(None, description="the score when it was learned: forgetting is before - value")

    @property
    def value(self) -> float:
        """The score that tables show: on test rows, where there are any."""
        return self.dev if self.test is None else self.test

    @property
    def scored_rows(self) -> int:
        """How many rows :attr:`value` is of."""
        return self.rows if self.test is None else self.test_rows


class RunRecord(BaseModel, frozen=True):
    """What ``run.json`` holds."""

    schema_version: int = SCHEMA
    run: str
    kind: Kind
    seed: int
    identity: dict[str, Any] = Field(description="everything that determines the run; its hash is the run's name")
    sources: tuple[SourceRun, ...] = ()
    anchor: str | None = Field(None, description="the task whose adapter the run started as, if it may start as one")
    anchor_candidates: dict[Name, float] = Field(
        {}, description="dev scores of the adapters that a fusion's anchor was chosen from, where there were several"
    )
    anchor_scores: dict[Name, float] = Field({}, description="of the same on the test rows, where dev only chooses")
    gates: dict[Name, float] = Field({}, description="where the gates of a fusion started, if probes chose them")
    backbone: str
    best_epoch: int
    scores: dict[Name, TaskScore] = Field(
        description="of the tasks that the run trained on, those that sequential tuning came from, or any asked for"
    )
    unchanged: dict[str, str] = Field(
        {}, description="sha256, measured after training, of what stayed bit for bit as it was: backbone, adapters"
    )
    cost: Cost
    parameters: Parameters | None = Field(None, description="absent from records of older versions")
    artifact: str | None = Field(None, description="folder of the trained artifact, as given on the command line")
    artifact_digest: str | None = None
    manifest: Manifest | None = Field(
        None, description="of the artifact: what is built on it can be identified without it; absent from older records"
    )
    weights_sha256: str | None = Field(None, description="of weights.safetensors beside run.json, where kept")
    provenance: dict[str, Any] = Field(description="commit, dirty flag, versions, hardware")
    finished_at: str = Field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))

    @model_validator(mode="before")
    @classmethod
    def _upgrade(cls, values: Any) -> Any:
        return upgraded(values) if isinstance(values, dict) and "scores" not in values else values

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        """Check what every reader counts on, and the types of the fields do not say."""
        if not self.trained_on:
            raise ValueError("scores: no task that it trained on")
        described = self.identity.get("tasks")
        for task in self.trained_on:
            own = described.get(task) if isinstance(described, dict) else None
            if not isinstance(own, dict) or not isinstance(own.get("meaning"), dict):
                raise ValueError(f"identity: task '{task}' is missing or has no meaning")
        if self.kind == "ensemble":
            if not isinstance(self.identity.get("members"), list):
                raise ValueError("identity: an ensemble without members")
        elif not _has_texts(self.identity.get("backbone"), "weights"):
            raise ValueError("identity: the backbone is missing or has no weights")
        chosen_from = self.identity.get("sources", [])
        if not isinstance(chosen_from, list) or not all(_has_texts(each, "task", "digest") for each in chosen_from):
            raise ValueError("identity: sources are not a list of tasks with their digests")
        try:
            canonical_json(self.identity)
        except ValueError as error:  # NaN or infinity
            raise ValueError(f"identity: has no hash ({error})") from None
        return self

    def score(self, task: str) -> TaskScore:
        """What the run's model scores on ``task``; a :class:`PipelineError` if it was not scored on it."""
        if task not in self.scores:
            raise PipelineError(f"run {self.run} was not scored on task '{task}', only on {', '.join(self.scores)}")
        return self.scores[task]

    @property
    def trained_on(self) -> tuple[str, ...]:
        """The tasks that the run trained on, by name."""
        return tuple(sorted(task for task, score in self.scores.items() if score.recipe is not None))

    @property
    def task(self) -> str:
        """The tasks that the run trained on in one word: ``sst``, or ``quora+sst`` of joint training."""
        return "+".join(self.trained_on)

    @property
    def metric(self) -> str:
        """What :attr:`dev` counts in: the metric of the only task, or ``mean``."""
        return self.own.metric if len(self.trained_on) == 1 else "mean"

    @property
    def dev(self) -> float:
        """The dev score by which the kept epoch was selected: on the only task, or the mean over several."""
        return sum(self.scores[task].dev for task in self.trained_on) / len(self.trained_on)

    @property
    def model_sha256(self) -> str | None:
        """A hash of what it kept of its model, if anything."""
        return self.artifact_digest or self.weights_sha256

    @property
    def value(self) -> float:
        """As :attr:`dev`, on the test rows."""
        return sum(self.scores[task].value for task in self.trained_on) / len(self.trained_on)

    @property
    def test(self) -> float | None:
        """As :attr:`dev`, on the test rows; None where dev is scored itself."""
        return None if all(self.scores[task].test is None for task in self.trained_on) else self.value

    @property
    def hardware(self) -> str:
        """What computed it: ``1 x NVIDIA H100``, or ``CPU, 2 threads (Intel Xeon)`` where the CPU is known."""
        device, processor = (self.provenance.get(key) for key in ("hardware", "processor"))
        known = str(device or "unknown hardware")
        return f"{known} ({processor})" if processor and known.startswith("CPU") else known

    @property
    def own(self) -> TaskScore:
        """Its score on the only task that it trained on, or on the first by name."""
        return self.scores[self.trained_on[0]]

    @property
    def is_continued_adapter(self) -> bool:
        """Whether it is an adapter that goes on from its source, which others may start as or not."""
        return self.kind == "adapter" and "start" in self.identity

    @property
    def recipe(self) -> Recipe:
        """What the recipes of its tasks agree in: all that concerns the encoder and its training."""
        return self.recipe_of(self.trained_on[0])

    def recipe_of(self, task: str) -> Recipe:
        """How a task of :attr:`trained_on` was trained."""
        recipe = self.score(task).recipe
        assert recipe is not None
        return recipe

    @property
    def backbone_weights(self) -> str | None:
        """The hash of the pretrained encoder's weights; None of an ensemble, whose members may have several."""
        return None if self.kind == "ensemble" else self.identity["backbone"]["weights"]

    @property
    def chosen_from(self) -> list[dict[str, str]]:
        """``task`` and ``digest`` of each source that it was given; :attr:`sources` are those that it took."""
        return self.identity.get("sources", [])

    def described(self, task: str) -> dict[str, Any]:
        """What identified a task of :attr:`trained_on` when the run was made: ``meaning`` (classes, range, metric),
        ``recipe`` and ``data``, the fingerprints of its rows."""
        return self.identity["tasks"][task]

    def summary(self) -> dict[str, Any]:
        """What the training verbs print with ``--json``."""
        named = {key: getattr(self, key) for key in ("run", "kind", "task", "metric", "dev")}
        return {**named, **self.cost.model_dump(), "artifact": self.artifact}


def _has_texts(value: Any, *keys: str) -> bool:
    """Whether ``value`` is a table with a text under each of ``keys``."""
    return isinstance(value, dict) and all(isinstance(value.get(key), str) for key in keys)


RECORD_FILE = re.compile(r"run\.json|(curve|attention)\.csv|predictions(-[a-z][a-z0-9_-]*)?\.parquet")
"""The names of the files that are a finished run's record."""

_REMEDY = "train the run again with --force"

RUN_NAME = re.compile(r"[\w-]{1,64}")
"""What may be the name of a folder beside the others: a person's slip must not be read as a path."""


def run_name(identity: dict[str, Any]) -> str:
    """The name of the run that ``identity`` determines: 12 hex digits of its sha256."""
    return sha256_text(canonical_json({"schema": SCHEMA, **identity}))[:12]


class Ledger:
    """The runs of one reports folder."""

    def __init__(self, reports: Path) -> None:
        self.root = reports / "runs"
        self._records = ModelFiles(RunRecord, "delete it, and the run is made again")

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
        """Of :meth:`names` those whose folders changed last, ``most`` at most."""
        if not self.root.is_dir():
            return []
        changed: list[tuple[int, str]] = []
        with os.scandir(self.root) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):  # removed since, or a link to nothing
                    changed.append((entry.stat().st_mtime_ns, entry.name))
        return [name for _, name in nlargest(most, changed)]

    def records(self) -> tuple[dict[str, RunRecord], list[str]]:
        """The finished runs by name, and why others cannot be read."""
        problems: list[str] = []
        records = {}
        files = [self.folder(name) / "run.json" for name in self.names() if RUN_NAME.fullmatch(name)]
        for file, record in self._records.read_all(files).items():
            if isinstance(record, PipelineError):
                problems.append(str(record))
            elif record.run != file.parent.name:
                problems.append(f"{file}: the record of run {record.run}: rename its folder to that, or delete it")
            else:
                records[record.run] = record
        return records, problems

    def began(self, run: str) -> bool:
        """Whether a run called ``run`` left anything, finished or not."""
        return bool(RUN_NAME.fullmatch(run)) and self.folder(run).is_dir()

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
        folder = make_folder(self.folder(run))
        busy = RunBusy(f"run {run} is being trained by another process: wait for it, then try again")
        with locked(folder / ".lock", if_held=None if wait else busy, renewed=True):
            clear_leftovers(folder)
            clear_leftovers(self.checkpoint_file(run).parent)
            yield

    def is_busy(self, run: str) -> bool:
        """Whether another process holds the lock of ``run``."""
        return is_held(self.folder(run) / ".lock")

    def finish(
        self,
        record: RunRecord,
        curve: Sequence[Mapping[str, float | None]],
        predictions: Mapping[str, pd.DataFrame],
        attention: pd.DataFrame | None = None,
    ) -> None:
        """Write everything of a run, ``run.json`` last, and drop its checkpoint; ``predictions`` are by task."""
        folder = make_folder(self.folder(record.run))
        # Of a run that is trained again: its old record does not go with the files that follow.
        with writing(folder):
            (folder / "run.json").unlink(missing_ok=True)
        write_table(pd.DataFrame(curve, dtype=object), folder / "curve.csv")
        for task, table in predictions.items():
            write_table(table, self._predictions_file(record.run, None if task == record.trained_on[0] else task))
        if attention is not None:
            write_table(attention, folder / "attention.csv")
        write_json(folder / "run.json", record.model_dump(mode="json"))
        self.drop_checkpoint(record.run)

    def files(self, run: str) -> list[Path]:
        """The files that are the record of a finished run: not its weights or checkpoint."""
        return sorted(file for file in self.folder(run).iterdir() if RECORD_FILE.fullmatch(file.name))

    def add(self, run: str, contents: Mapping[str, Iterable[bytes]]) -> bool:
        """Add the record of a run that was finished elsewhere, from the contents of its files, ``run.json`` last.

        Nothing is done if the run is finished here: False. A run that was begun here counts as finished then.
        """
        with self.lock(run):
            if self.find(run) is not None:
                return False
            for name in sorted(contents, key=lambda name: name == "run.json"):
                with new_file(self.folder(run) / name) as temporary, temporary.open("wb") as file:
                    file.writelines(contents[name])
            self.drop_checkpoint(run)
        return True

    def add_scores(self, record: RunRecord, added: Mapping[str, tuple[TaskScore, pd.DataFrame]]) -> RunRecord:
        """Add what the model of a finished run is found to score on other tasks, predictions first."""
        with self.lock(record.run, wait=True):
            for task, (_, table) in added.items():
                write_table(table, self._predictions_file(record.run, task))
            scores = {task: score for task, (score, _) in added.items()}
            # Another process may have added some since the record was read.
            record = self.find(record.run) or record
            record = record.model_copy(update={"scores": {**record.scores, **scores}})
            write_json(self.folder(record.run) / "run.json", record.model_dump(mode="json"))
        return record

    def tidy(self, run: str) -> None:
        """Remove what a process that was killed just after it finished ``run`` left of it."""
        if self.checkpoint_file(run).parent.is_dir():
            # Whoever trains it anew, or does not let us write, keeps the checkpoint.
            with suppress(PipelineError), self.lock(run):
                self.drop_checkpoint(run)

    def remove(self, run: str) -> None:
        """Delete a run, finished or not; raises :class:`RunBusy` while another process trains it."""
        folder = self.folder(run)
        with self.lock(run), writing(folder):
            if folder.is_symlink():
                folder.unlink()
                return
            (folder / "run.json").unlink(
                missing_ok=True
            )  # first: without it the run does not count, should the rest stay
            shutil.rmtree(folder)

    def drop_checkpoint(self, run: str) -> None:
        """Let the run begin at its beginning; what it finished before stays until it has finished again."""
        shutil.rmtree(self.checkpoint_file(run).parent, ignore_errors=True)


def _read(
    reader: Callable[..., pd.DataFrame], file: Path, *columns: str, others: Sequence[str] = (), **options: Any
) -> pd.DataFrame:
    """The table in ``file``, which must have ``columns`` of finite numbers, and ``others`` of anything."""
    with reading(file, _REMEDY):
        check_regular(file)
        table = reader(file, **options)
    for name in (*columns, *others):
        values = table.get(name)
        if values is None:
            raise PipelineError(f"{file}: column '{name}' is missing: {_REMEDY}")
        if name in columns and not (is_numeric_dtype(values) and np.isfinite(values.to_numpy(np.float64)).all()):
            raise PipelineError(f"{file}: column '{name}' holds something else than finite numbers: {_REMEDY}")
    return table
