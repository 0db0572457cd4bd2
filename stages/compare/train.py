"""Trains the missing jobs of a study, each once: one after the other in this process, or several at once in a pool.

A failed job does not affect the others. A refusal of the machine, such as a full disk, would hit the next job too: it
ends the study once the running jobs have finished.
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
    """Finish every job in this process, or learn why it fails.

    Runs that other commands are training come last. They are waited for, then taken from the ledger, or trained here if
    the other command did not finish them.
    """
    while missing := jobs.missing:
        busy = [run for job in missing if (run := _train(job, jobs, progress)) is not None]
        if busy:
            _wait_for_any(busy, jobs, progress)


def train_in(pool: Pool, jobs: Jobs, progress: Progress) -> None:
    """As :func:`train` in the processes of ``pool``, each job as soon as what it builds on is known."""
    _InPool(pool, jobs, progress).train()


def _train(job: Job, jobs: Jobs, progress: Progress) -> TrainingRun | EnsembleRun | None:
    """Train a job unless what it needs is yet to come; returns its run if another command is training it."""
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
        if process_count() > 1:  # the processes that train together would wait for this one
            raise
        jobs.outcomes[job] = bug(error)
    progress.end(job)
    return None


def _wait_for_any(runs: Sequence[TrainingRun | EnsembleRun], jobs: Jobs, progress: Progress) -> None:
    """Return when one of ``runs``, which other commands are training, is no longer being trained."""
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
        if (memory := pool.memory_gb) is not None:  # half of it is for caches; the rest for models and their training
            self.workspace = replace(self.workspace, cache_gb=min(self.workspace.cache_gb, memory / 2))
        self.running: dict[int, Job] = {}
        self.elsewhere: dict[Job, Ended] = {}
        self.refusal: MachineError | None = None

    def train(self) -> None:
        """Train what is missing. Once the machine refuses something, let the jobs that run end, and start no other."""
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
                    continue  # what builds on a job that is settled may come before the rest
                names = ", ".join(job.title for job in self.running.values())
                status.update(Text(f"{len(self.running)} running: {names}", no_wrap=True, overflow="ellipsis"))
                for number, outcome in pool.wait(POLL_SECONDS):
                    with self._refusals():
                        self._take(self.running.pop(number), outcome)

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        """Keep the machine's first refusal."""
        try:
            with machine_errors():
                yield
        except MachineError as error:
            self.refusal = self.refusal or error

    def _start(self, missing: Sequence[Job]) -> bool:
        """Start as many of the ``missing`` jobs as the pool takes; whether one needed no training instead."""
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
        """Whether another command still trains it."""
        return job in self.elsewhere and self.jobs.workspace.ledger.is_busy(self.elsewhere[job].run)

    def _settle(self, job: Job) -> bool:
        """Whether a job needs no training: it fails with what it builds on, one of its trials is its run, or it joins
        the predictions of others."""
        if self.jobs.failed(job) or KINDS[job.kind].is_ensemble or self._is_trial(job):
            _train(job, self.jobs, self.progress)  # a moment
        return job in self.jobs.outcomes

    def _is_trial(self, job: Job) -> bool:
        """Whether a trial that has finished, and still has its model, is the run of a job."""
        known = self.jobs
        is_trial = job.is_choice and known.best_trial(job) in known.outcomes
        return is_trial and known.run(job).finished() is not None

    def _remote_job(self, job: Job) -> bytes:
        known = self.jobs
        outcomes = {each: known.outcomes[each] for each in job.built_on}
        built_on = {each: out if isinstance(out, PipelineError) else out.run for each, out in outcomes.items()}
        # A new workspace: what this process has read stays here.
        return pickle.dumps(RemoteJob(job, job in known.kept, built_on, replace(self.workspace)))

    def _take(self, job: Job, outcome: Outcome) -> None:
        """Note how a job ended in the pool."""
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
