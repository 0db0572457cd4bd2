"""Jobs of a study become runs: found in the ledger or trained, each once, with a line on how far the study is."""

import sys
import time
from collections.abc import Sequence, Set
from pathlib import Path

from pipeline.records.ledger import RunBusy, RunRecord
from pipeline.records.store import Artifact
from pipeline.runs.request import RunRequest
from pipeline.runs.training_run import TrainingRun
from pipeline.runs.workspace import Workspace
from pipeline.system.errors import PipelineError
from pipeline.training.devices import is_main_process, on_main_process
from stages.compare.estimate import Estimate
from stages.compare.plan import Job, in_order
from stages.fuse import Fusion
from stages.pretrain import pretraining_seconds

_GO_ON = ("sequential", "multitask")
"""Kinds of runs that go on from the weights of the run they need."""


_POLL_SECONDS = 0.5


class Jobs:
    """The jobs of one study in a workspace. What failed once is not tried again, nor what builds on it.

    Args:
        kept: jobs whose models are wanted afterwards.
    """

    def __init__(
        self, jobs: Sequence[Job], workspace: Workspace, estimate: Estimate, kept: Set[Job] = frozenset()
    ) -> None:
        self.jobs, self.workspace, self.estimate = jobs, workspace, estimate
        self._records: dict[Job, RunRecord] = {}
        self._errors: dict[Job, PipelineError] = {}
        self._kept = kept | {need for job in jobs for need in job.needs if job.kind in _GO_ON}
        # Other commands may finish runs meanwhile, and the processes that train together must agree on what is missing.
        self._records = on_main_process(self._look_up)
        self._to_train = [job for job in jobs if job not in self._records]

    def seconds(self, job: Job) -> float:
        """Training time of a finished job with everything that it needed, each run once.

        Where a row has a backbone of its own, that includes its further pretraining.
        """
        records = {record.run: record for need in in_order([job]) if (record := self._records.get(need)) is not None}
        pretraining = pretraining_seconds(Path(job.backbone)) if job.backbone is not None else 0.0
        return pretraining + sum(record.cost.seconds for record in records.values())

    @property
    def missing(self) -> list[Job]:
        """The jobs that are neither finished nor have failed."""
        return [job for job in self._to_train if job not in self._records and job not in self._errors]

    def train(self) -> None:
        """Finish every job, or learn why it fails.

        Runs that other commands are training come last. They are waited for, then taken from the ledger, or trained
        here if the other command did not finish them.
        """
        if is_main_process():
            for record in self._records.values():
                self.workspace.ledger.tidy(record.run)
        while jobs := self.missing:
            busy = [run for job in jobs if (run := self._try(job)) is not None]
            if busy:
                self._wait_for_any(busy)

    def get(self, job: Job) -> RunRecord:
        """The run of a job, after :meth:`train`.

        Raises:
            PipelineError: it failed, or something it builds on did; the reason.
        """
        if job in self._errors:
            raise self._errors[job]
        return self._records[job]

    def _try(self, job: Job) -> TrainingRun | None:
        """Train a job unless what it needs is yet to come; returns its run if another command is training it."""
        if any(need not in self._records and need not in self._errors for need in job.needs):
            return None
        run: TrainingRun | None = None
        try:
            for need in job.needs:
                self.get(need)
            run = self._run(job)
            self._records[job] = run.get()
            self.estimate.learn(self._records[job])
        except RunBusy:
            return run
        except PipelineError as error:
            self._errors[job] = error
        self._tell(job)
        return None

    def _wait_for_any(self, runs: Sequence[TrainingRun]) -> None:
        """Return when one of ``runs``, which other commands are training, is no longer being trained."""
        if is_main_process():
            more = f" and {len(runs) - 1} more" if len(runs) > 1 else ""
            waiting = f"waiting for run {runs[0].name} ({runs[0].title}){more}: another command is training it"
            print(waiting, file=sys.stderr, flush=True)
        ledger = self.workspace.ledger
        time.sleep(_POLL_SECONDS)
        while on_main_process(lambda: all(ledger.is_busy(run.name) for run in runs)):
            time.sleep(_POLL_SECONDS)

    def _look_up(self) -> dict[Job, RunRecord]:
        """The jobs that the ledger has. One whose sources are unfinished cannot be identified and counts as missing."""
        for job in self.jobs:
            if all(need in self._records for need in job.needs):
                record = self._run(job).finished()
                if record is not None:
                    self._records[job] = record
        return self._records

    def _run(self, job: Job) -> TrainingRun:
        start = self._records[job.needs[0]] if job.kind in _GO_ON and job.needs else None
        workspace, adapters = self.workspace.on(job.backbone), self._adapters(job)
        if job.kind == "fusion":
            (part,) = job.parts
            return Fusion(part.task, part.recipe, workspace).run(adapters, seed=job.seed, limit=part.limit)
        # Sequential tuning gets a new head (Phang et al. 2019): the source's stays behind.
        return TrainingRun(RunRequest(job.kind, job.parts, job.seed, adapters, start, job in self._kept), workspace)

    def _adapters(self, job: Job) -> tuple[Artifact, ...]:
        """The adapters that a job needs, one a task: the best on dev, of equal ones the first."""
        if job.kind not in ("adapter", "fusion"):
            return ()
        best: dict[str, RunRecord] = {}
        for need in job.needs:
            record = self._records[need]
            if record.task not in best or record.dev > best[record.task].dev:
                best[record.task] = record
        found = [self.workspace.store.find(record.run) for record in best.values()]
        return tuple(artifact for artifact in found if artifact is not None)

    def _tell(self, job: Job) -> None:
        if not is_main_process():
            return
        left = self.missing
        done = len(self._to_train) - len(left)
        if job in self._errors:
            outcome = f"failed: {self._errors[job]}"
        else:
            record = self._records[job]
            tasks = [part.task for part in job.parts]
            outcome = ", ".join(f"{task} {record.score(task).metric} {record.score(task).dev:.4f}" for task in tasks)
        time_left = f", {self.estimate.total(left)} left" if left else ""
        print(f"[{done}/{len(self._to_train)} runs{time_left}] {job.title}: {outcome}", file=sys.stderr, flush=True)
