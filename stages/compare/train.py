"""Train the missing jobs of a study: one after the other in this process, or several at once in a pool.

A failed job does not affect the others. An error of the machine, such as a full disk, would meet the next job too: it
ends the study after the running jobs.
"""

import pickle
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from rich.text import Text

from pipeline.records.ledger import RunBusy
from pipeline.runs.training_run import TrainingRun
from pipeline.settings.kinds import KINDS
from pipeline.system.errors import MachineError, PipelineError, machine_errors
from pipeline.system.streams import notice
from pipeline.training.process_group import on_main_process, process_count
from pipeline.training.progress import console
from stages.compare.executors.pool import Outcome, Pool, bug
from stages.compare.jobs import Jobs
from stages.compare.plan import Job
from stages.compare.progress import Progress
from stages.compare.remote import POLL_SECONDS, Ended, RemoteJob, appeared
from stages.ensemble import EnsembleRun


def train(jobs: Jobs, progress: Progress) -> None:
    """Train every job in this process, or note why it fails.

    Runs that other commands are training come last. This command waits for them, then takes them from the ledger, or
    trains them if the other command has not finished them.
    """
    while missing := jobs.missing:
        busy = [run for job in missing if (run := _train(job, jobs, progress)) is not None]
        if busy:
            _wait_for_any(busy, jobs, progress)


def train_in(pool: Pool, jobs: Jobs, progress: Progress) -> None:
    """As :func:`train`, in the processes of ``pool``. A job starts as soon as all jobs that it builds on have ended."""
    _InPool(pool, jobs, progress).train()


def _train(job: Job, jobs: Jobs, progress: Progress) -> TrainingRun | EnsembleRun | None:
    """Train a job whose needs are met; returns its run if another command is training it."""
    if not jobs.can_run(job):
        return None
    run: TrainingRun | EnsembleRun | None = None
    try:
        with machine_errors():
            run = jobs.run(job)
            jobs.outcomes[job] = run.get()
    except RunBusy:
        return run
    except MachineError:
        raise
    except PipelineError as error:
        jobs.outcomes[job] = error
    except Exception as error:
        if process_count() > 1:  # the other processes would wait for this one
            raise
        jobs.outcomes[job] = bug(error)
    progress.end(job)
    return None


def _wait_for_any(runs: Sequence[TrainingRun | EnsembleRun], jobs: Jobs, progress: Progress) -> None:
    """Wait until another command has stopped training one of ``runs``."""
    progress.wait(runs[0].name, runs[0].title, len(runs) - 1)
    time.sleep(POLL_SECONDS)
    ledger = jobs.workspace.ledger
    while on_main_process(lambda: all(ledger.is_busy(run.name) for run in runs)):
        time.sleep(POLL_SECONDS)


class _InPool:
    """Jobs that run in a pool, and those that another command trains."""

    def __init__(self, pool: Pool, jobs: Jobs, progress: Progress) -> None:
        self.pool, self.jobs, self.progress = pool, jobs, progress
        self.numbers = {job: number for number, job in enumerate(jobs.jobs)}
        self.workspace = jobs.workspace
        if (memory := pool.memory_gb) is not None:  # half for caches, the rest for training
            self.workspace = replace(self.workspace, cache_gb=min(self.workspace.cache_gb, memory / 2))
        self.running: dict[int, Job] = {}
        self.elsewhere: dict[Job, Ended] = {}
        self.refusal: MachineError | None = None

    def train(self) -> None:
        """Train the missing jobs. After an error of the machine, let the running jobs end and start no other."""
        pool, places = self.pool, ""
        with console.status("") as status:
            while missing := self.jobs.missing:
                if self.refusal is not None and not self.running:
                    raise self.refusal
                if pool.places != places:
                    places = pool.places
                    notice(places)
                is_settled = False
                with self._refusals():
                    is_settled = self.refusal is None and self._start(missing)
                if is_settled:
                    continue  # jobs that build on a settled job may come first
                names = ", ".join(job.title for job in self.running.values())
                status.update(Text(f"{len(self.running)} running: {names}", no_wrap=True, overflow="ellipsis"))
                for number, outcome in pool.wait(POLL_SECONDS):
                    with self._refusals():
                        self._take(self.running.pop(number), outcome)

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        """Keep the first error of the machine."""
        try:
            with machine_errors():
                yield
        except MachineError as error:
            self.refusal = self.refusal or error

    def _start(self, missing: Sequence[Job]) -> bool:
        """Start as many of the ``missing`` jobs as the pool takes. Returns True, early, if a job needed no training."""
        for job in missing:
            number = self.numbers[job]
            if number in self.running or not self.jobs.can_run(job) or self._is_busy(job):
                continue
            if self._settle(job):
                return True
            if len(self.running) < self.pool.at_once:
                self.pool.start(number, job.title, self._remote_job(job))
                self.running[number] = job
        return False

    def _is_busy(self, job: Job) -> bool:
        """Whether another command is still training it."""
        return job in self.elsewhere and self.jobs.workspace.ledger.is_busy(self.elsewhere[job].run)

    def _settle(self, job: Job) -> bool:
        """Settle a job that needs no training, and return whether it is settled.

        It fails with a job that it builds on, one of its trials is its run, or it is an ensemble.
        """
        if self.jobs.failed(job) or KINDS[job.kind].is_ensemble or self._is_trial(job):
            _train(job, self.jobs, self.progress)  # a moment
        return job in self.jobs.outcomes

    def _is_trial(self, job: Job) -> bool:
        """Whether a job's run is a trial that has finished and still has its model."""
        known = self.jobs
        is_trial = job.is_choice and known.best_trial(job) in known.outcomes
        return is_trial and known.run(job).finished() is not None

    def _remote_job(self, job: Job) -> bytes:
        known = self.jobs
        outcomes = {each: known.outcomes[each] for each in job.built_on}
        built_on = {each: out if isinstance(out, PipelineError) else out.run for each, out in outcomes.items()}
        # A new workspace, without what this process has read.
        return pickle.dumps(RemoteJob(job, job in known.kept, built_on, replace(self.workspace)))

    def _take(self, job: Job, outcome: Outcome) -> None:
        """Record how a job ended in the pool."""
        ended: Ended | None = outcome.value
        if ended is not None and ended.is_busy:
            if job not in self.elsewhere:
                self.progress.wait(ended.run, ended.title)
            self.elsewhere[job] = ended
            return
        try:
            if ended is None:
                raise outcome.error or PipelineError("its worker ended without a result: see standard error")
            workspace = self.jobs.workspace.on(job.backbone)
            self.jobs.outcomes[job] = appeared(ended.run, workspace, job in self.jobs.kept)
        except MachineError:
            raise
        except PipelineError as error:
            self.jobs.outcomes[job] = error
        self.progress.end(job, outcome.place, self.pool.at_once)
