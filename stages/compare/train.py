"""Train the missing jobs of a study: one after the other in this process, or several at once in a pool.

A failed job does not affect the others. An error of the machine, such as a full disk, would meet the next job too: it
ends the study after the running jobs.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

from rich.text import Text

from pipeline.settings.kinds import KINDS
from pipeline.system.errors import MachineError, PipelineError, machine_errors
from pipeline.system.streams import notice
from pipeline.training.devices import on_main_process
from pipeline.training.progress import console
from stages.compare.executors.pool import Outcome, Pool, carried_out
from stages.compare.jobs import POLL_SECONDS, Ended, Jobs, RemoteJob, appeared
from stages.compare.plan import Job
from stages.compare.progress import Progress


def train(jobs: Jobs, progress: Progress, pool: Pool | None = None) -> None:
    """Train every missing job in ``pool``, by default this process, or record why it fails.

    A job starts as soon as all jobs that it builds on have ended. Runs that other commands are training come last: this
    command takes them from the ledger, or trains them if the other command has not finished them.
    """
    _Training(pool or _Here(), jobs, progress).train()


class _Here:
    """This process as a pool: a cell runs when it is started."""

    places, at_once, memory_gb = "", 1, None

    def __init__(self) -> None:
        self._ended: list[tuple[int, Outcome]] = []

    def start(self, number: int, title: str, work: Callable[[], Any]) -> None:
        self._ended.append((number, carried_out(work)))

    def wait(self, seconds: float) -> list[tuple[int, Outcome]]:
        if not self._ended:
            time.sleep(seconds)
        ended, self._ended = self._ended, []
        return ended


class _Training:
    """Jobs that run in a pool, and those that another command trains."""

    def __init__(self, pool: Pool, jobs: Jobs, progress: Progress) -> None:
        self.pool, self.jobs, self.progress = pool, jobs, progress
        self.numbers = {job: number for number, job in enumerate(jobs.jobs)}
        self.workspace = jobs.workspace
        if (memory := pool.memory_gb) is not None:  # half for caches, the rest for training
            self.workspace = replace(self.workspace, cache_gb=min(self.workspace.cache_gb, memory / 2))
        self.here = pool if isinstance(pool, _Here) else _Here()
        self.running: dict[int, Job] = {}
        self.elsewhere: dict[Job, Ended] = {}
        self.refusal: MachineError | None = None

    def train(self) -> None:
        """Train the missing jobs. After an error of the machine, let the running jobs end and start no other."""
        pool, places = self.pool, ""
        # A training in this process draws its own progress.
        with nullcontext() if pool is self.here else console.status("") as status:
            while missing := self.jobs.missing:
                if self.refusal is not None and not self.running:
                    raise self.refusal
                if pool.places != places:
                    places = pool.places
                    notice(places)
                if self.refusal is None:
                    with self._refusals():
                        self._start(missing)
                names = ", ".join(job.title for job in self.running.values())
                if status is not None:
                    status.update(Text(f"{len(self.running)} running: {names}", no_wrap=True, overflow="ellipsis"))
                for number, outcome in self.here.wait(0) or pool.wait(POLL_SECONDS):
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

    def _start(self, missing: Sequence[Job]) -> None:
        """Start as many of the ``missing`` jobs as the pool takes; in this process the first one."""
        for job in missing:
            number = self.numbers[job]
            if number in self.running or not self.jobs.can_run(job) or self._is_busy(job):
                continue
            pool = self.here if self._is_quick(job) else self.pool
            if pool is self.here or len(self.running) < pool.at_once:
                pool.start(number, job.title, self._remote_job(job))
                self.running[number] = job
            if pool is self.here:
                return  # jobs that build on it may come first

    def _is_busy(self, job: Job) -> bool:
        """Whether another command is still training it."""
        ledger = self.jobs.workspace.ledger
        return job in self.elsewhere and on_main_process(lambda: ledger.is_busy(self.elsewhere[job].run))

    def _is_quick(self, job: Job) -> bool:
        """Whether a job needs no training: it is an ensemble, it will fail, or its run is a trial that has finished."""
        known = self.jobs
        if known.failed(job) or KINDS[job.kind].is_ensemble:
            return True
        return job.is_choice and known.best_trial(job) in known.outcomes and known.run(job).finished() is not None

    def _remote_job(self, job: Job) -> RemoteJob:
        known = self.jobs
        outcomes = {each: known.outcomes[each] for each in job.built_on}
        built_on = {each: out if isinstance(out, PipelineError) else out.run for each, out in outcomes.items()}
        return RemoteJob(job, job in known.kept, built_on, self.workspace)

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
