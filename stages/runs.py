"""The runs of a reports folder, and what needs them."""

import math
import shlex
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from pipeline.records.ledger import Ledger
from pipeline.records.run_record import RunRecord
from pipeline.records.store import Store
from pipeline.records.studies import Ensembles, StudyResult
from pipeline.settings.kinds import Method
from pipeline.system.atomic import CLEARED, leftovers, size_of
from pipeline.system.errors import PipelineError, few, noted
from pipeline.system.process import token_cache
from pipeline.system.reading import read_model

Sort = Literal["date", "task", "score", "size", "seconds"]
LEAST_OF_NAME = 4
"""Minimum number of characters that may stand for a run's name."""
FEW_POINTS = 6
"""A curve with more points is shown by its ends, its best point and some between."""


class Runs:
    """The finished and unfinished runs of ``reports``, and what needs them there and in ``store``."""

    def __init__(self, reports: Path, store: Path) -> None:
        self.reports, self.store, self.ledger = reports, Store(store), Ledger(reports)
        self.records, self._damaged = self.ledger.records()
        self._unread = list[str]()
        """Why some studies and ensembles cannot be read."""

    @property
    def problems(self) -> list[str]:
        """What could not be read and is left out; studies and ensembles are included once :attr:`uses` is known."""
        return [*self._damaged.values(), *self._unread]

    @cached_property
    def unfinished(self) -> list[str]:
        """Runs without a record that are in training, or that left something to resume from or to delete."""
        names = list[str]()
        for name in self.ledger.names():
            with suppress(PipelineError):  # `problems` lists it
                if self.ledger.is_unfinished(name):
                    names.append(name)
        return names

    @cached_property
    def uses(self) -> dict[str, list["Need"]]:
        """By run, what needs it."""
        uses: dict[str, list[Need]] = defaultdict(list)
        for artifact in self.store.artifacts():
            uses[artifact.manifest.run].append(Need("artifact", str(artifact.folder)))
        for record in self.records.values():
            for source in self.built_on(record):
                uses[source].append(Need("run", record.run, f"{record.kind} of {record.task}"))
        for file in sorted(self.reports.glob("*/study.json")):
            with noted(self._unread):
                for run, cells in _cells_in(file).items():
                    more = f" and {len(cells) - 1} more" if len(cells) > 1 else ""
                    uses[run].append(Need("study", file.parent.name, f"{cells[0]}{more}"))
        ensembles, unread = Ensembles(self.reports).read_all()
        self._unread += unread
        for ensemble in ensembles:
            for member in ensemble.members:
                uses[member.run].append(Need("ensemble", ensemble.name, f"weight {member.weight:.3f}"))
        return uses

    def built_on(self, record: RunRecord) -> list[str]:
        """The runs that a run was built on, and those among which it chose: its name depends on all of them."""
        here = [run for each in record.chosen_from for run in self._by_model.get(each["digest"], ())]
        members = record.identity["members"] if record.kind == "ensemble" else ()
        return list(dict.fromkeys((*(source.run for source in record.sources), *here, *members)))

    @cached_property
    def _by_model(self) -> dict[str, list[str]]:
        """Runs by the hash of their model. A warm start without a source equals a new adapter, so two may share one."""
        runs: dict[str, list[str]] = defaultdict(list)
        for record in self.records.values():
            if record.model_sha256 is not None:
                runs[record.model_sha256].append(record.run)
        return runs

    def listed(
        self,
        *,
        task: str | None = None,
        kind: Method | None = None,
        since: str | None = None,
        unused: bool = False,
        sort: Sort = "date",
    ) -> list["ListedRun"]:
        """The finished runs that pass all filters.

        Args:
            task: trained on this task, alone or among others.
            since: an ISO 8601 date or time; UTC unless it has an offset.
            unused: only runs that nothing needs.
            sort: by date, the oldest first; by task; by dev score within a task, the best first; by size or seconds,
                the largest first.
        """
        earliest = None
        if since is not None:
            try:
                moment = datetime.fromisoformat(since)
                utc = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
            except (ValueError, OverflowError):
                raise PipelineError(f"--since {since}: give a date such as {datetime.now(UTC).date()}") from None
            earliest = utc.isoformat(timespec="seconds")  # as records have it
        rows = [
            ListedRun(record, size_of(self.ledger.folder(record.run)))
            for record in self.records.values()
            if (task is None or task in record.trained_on)
            and (kind is None or record.kind == kind)
            and (earliest is None or record.finished_at >= earliest)
            and not (unused and record.run in self.uses)
        ]
        keys: dict[Sort, Callable[[ListedRun], Any]] = {
            "date": lambda row: row.record.finished_at,
            "task": lambda row: (row.record.task, row.record.kind, row.record.seed),
            "score": lambda row: (row.record.task, -row.record.dev),
            "size": lambda row: -row.size,
            "seconds": lambda row: -row.record.cost.seconds,
        }
        return sorted(rows, key=lambda row: (keys[sort](row), row.record.run))

    def named(self, run: str) -> RunRecord:
        """The finished run called ``run``, or the only one whose name begins with ``run``, of at least four characters.

        Raises:
            PipelineError: there is none, there are several, or it is damaged.
        """
        record = self.ledger.find(run)
        if record is None and len(run) >= LEAST_OF_NAME:
            matches = sorted(name for name in self.records if name.startswith(run))
            if len(matches) > 1:
                raise PipelineError(f"{run} begins the names of {', '.join(few(matches))}: give more of the name")
            record = self.records[matches[0]] if matches else None
        if record is None:
            unfinished = ", where it is not finished" if self.ledger.began(run) else ""
            raise PipelineError(f"no finished run {run} in {self.ledger.root}{unfinished}: see runs list")
        return record

    def described(self, run: str) -> "RunDescription":
        """All that is known of a finished run."""
        record, problems = self.named(run), list[str]()
        run = record.run
        curve: list[dict[str, Any]] = []
        with noted(problems):
            table = self.ledger.curve(run).reindex(columns=["epoch", "loss", "dev"])
            table = table.apply(pd.to_numeric, errors="coerce").astype(float).replace([math.inf, -math.inf], math.nan)
            curve = table.astype(object).where(table.notna(), None).to_dict("records")
        size, uses = size_of(self.ledger.folder(run)), tuple(self.uses.get(run, ()))
        return RunDescription(record, size, curve, uses, problems)

    def usage(self) -> dict[str, list[dict[str, Any]]]:
        """The disk space that everything takes, in bytes, and what can be deleted, as ``du --json`` prints them."""
        ledger, cache = self.ledger, token_cache()
        cached = 0 if cache is None else size_of(cache)
        folders = {run: size_of(ledger.folder(run)) for run in (*self.records, *self.unfinished)}
        checkpoints = {run: size for run in folders if (size := size_of(ledger.checkpoint_file(run).parent))}
        weights = {run: size for run in folders if (size := size_of(ledger.weights_file(run)))}
        busy = {run for run in (*self.unfinished, *checkpoints) if ledger.is_busy(run)}
        rest = sum(folders.values()) - sum(checkpoints.values()) - sum(weights.values())
        parts = (
            ("store", len(self.store.artifacts()), size_of(self.store.root), str(self.store.root)),
            ("runs", len(folders), rest, f"{ledger.root}: records, curves, predictions"),
            ("checkpoints", len(checkpoints), sum(checkpoints.values()), f"{ledger.root}/RUN/checkpoint"),
            ("kept weights", len(weights), sum(weights.values()), f"{ledger.root}/RUN/weights.safetensors"),
            ("token cache", len(list(cache.iterdir())) if cache and cached else 0, cached, str(cache or "-")),
        )
        unused = {run: folders[run] for run in self.records if run not in self.uses}
        stopped = {run: folders[run] for run in self.unfinished if run not in busy}
        needless = {run: size for run, size in checkpoints.items() if run in self.records and run not in busy}
        staged = {str(each): size_of(each) for root in (self.reports, self.store.root) for each in leftovers(root)}
        kept = [ledger.checkpoint_file(run).parent for run in needless]
        remove = "python -m pipeline runs remove"
        may_go = (
            ("runs that nothing needs", unused, f"{remove} --unused"),
            ("unfinished runs", stopped, f"{remove} {' '.join(stopped)}, or their commands again to resume"),
            ("checkpoints of finished runs", needless, f"rm -r {shlex.join(map(str, kept))}"),
            ("half-written files of killed commands", staged, CLEARED),
            ("tokenised texts", {str(cache): cached} if cached else {}, f"rm -r {shlex.quote(str(cache))}"),
        )
        return {
            "parts": [dict(zip(("name", "count", "bytes", "where"), part, strict=True)) for part in parts],
            "may_go": [
                {"what": what, "names": [*sizes], "bytes": sum(sizes.values()), "how": how}
                for what, sizes, how in may_go
                if sizes
            ],
        }

    def remove(self, runs: Sequence[str], *, force: bool = False) -> dict[str, Any]:
        """Delete the folders of ``runs``; only these runs may need each other. As ``runs remove --json`` prints it.

        Args:
            force: delete them even if something needs them; the result says what breaks.

        Raises:
            PipelineError: a run does not exist, is in training, or is needed; or a file that may name it cannot be
                read. Nothing is deleted.
        """
        for run in runs:
            if not self.ledger.began(run):
                raise PipelineError(f"no run {run} in {self.ledger.root}: give exact names, as runs list shows them")
            if self.ledger.is_busy(run):
                raise PipelineError(f"run {run} is being trained by another process: wait for it, or stop it")
        broken = [
            f"run {run}: {use.what_breaks}"
            for run in dict.fromkeys(runs)
            for use in self.uses.get(run, ())
            if not (use.kind == "run" and use.name in runs)
        ]
        unread = [problem for run, problem in self._damaged.items() if run not in runs] + self._unread
        for lines, heading in (
            (broken, "still needed; --force removes them anyway, and then"),
            (unread, "cannot tell whether something needs them; --force removes them anyway"),
        ):
            if lines and not force:
                raise PipelineError("\n  ".join([heading, *few(lines)]))
        sizes = {run: size_of(self.ledger.folder(run)) for run in runs}
        for run in sizes:
            self.ledger.remove(run)
        return {"removed": [*sizes], "bytes": sum(sizes.values()), "broken": broken}


@dataclass(frozen=True)
class Need:
    """Something that needs a run."""

    kind: Literal["artifact", "run", "study", "ensemble"]
    name: str
    detail: str = ""

    @property
    def what_breaks(self) -> str:
        """What fails without the run's record."""
        return {
            "artifact": f"{self.name} still predicts, but counts as untrained: extract, fuse and compare train it anew",
            "run": f"{self.detail} {self.name} builds on it, which can no longer be traced or continued",
            "study": f"report --study {self.name} fails until compare trains it again ({self.detail})",
            "ensemble": f"predict --using ensemble:{self.name} fails, unless the store has the artifact",
        }[self.kind]

    def __str__(self) -> str:
        return f"{self.kind} {self.name}" + (f" ({self.detail})" if self.detail else "")


@dataclass(frozen=True)
class ListedRun:
    """A finished run and the bytes of its folder."""

    record: RunRecord
    size: int

    def summary(self) -> dict[str, Any]:
        record = self.record
        return {
            **record.summary(),
            "score": record.value,
            "test": record.test,
            "seed": record.seed,
            "epochs": record.epochs,
            "finished_at": record.finished_at,
            "bytes": self.size,
        }


@dataclass(frozen=True)
class RunDescription:
    """All that is known of a finished run."""

    record: RunRecord
    size: int
    """Bytes of its folder."""
    curve: list[dict[str, Any]]
    """``epoch``, ``loss`` and ``dev`` of every point; the loss is None before the first step, and if there is none."""
    uses: tuple[Need, ...]
    problems: list[str]
    """Parts that could not be read."""

    @property
    def points(self) -> list[dict[str, Any]]:
        """At most ``FEW_POINTS`` + 1 points of the curve: both ends, the best epoch, and others evenly spread."""
        last, best = len(self.curve) - 1, self.record.best_epoch
        places = {round(last * place / (FEW_POINTS - 1)) for place in range(FEW_POINTS)}
        return [point for place, point in enumerate(self.curve) if place in places or point["epoch"] == best]

    def summary(self) -> dict[str, Any]:
        record = self.record
        return {
            **record.summary(),
            "seed": record.seed,
            "finished_at": record.finished_at,
            "bytes": self.size,
            "backbone": record.backbone,
            "best_epoch": record.best_epoch,
            "anchor": record.anchor,
            "recipes": {task: record.recipe_of(task).identity for task in record.trained_on},
            "scores": {
                task: {"metric": score.metric, "score": score.value, "rows": score.scored_rows, "dev": score.dev}
                for task, score in record.scores.items()
            },
            "data": {
                task: {
                    "train_rows": record.scores[task].train_rows,
                    "limit": record.scores[task].limit,
                    "fingerprints": record.fingerprints(task),
                }
                for task in record.trained_on
            },
            "sources": [{"task": source.task, "run": source.run} for source in record.sources],
            "curve": self.curve,
            "provenance": record.provenance,
            "used_by": [asdict(use) for use in self.uses],
            "problems": self.problems,
        }


def _cells_in(study: Path) -> dict[str, list[str]]:
    """By run, the cells of a study that it fills, or for which (or for whose sources) it was a trial."""
    cells: dict[str, list[str]] = {}
    for entry in read_model(StudyResult, study, "run compare again").entries:
        filling = () if entry.run is None else (entry.run,)
        for run in dict.fromkeys((*filling, *entry.trials, *entry.source_trials)):
            cells.setdefault(run, []).append(f"{entry.method} on {entry.target}, seed {entry.seed}")
    return cells
