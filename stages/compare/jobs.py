"""The state of a study's jobs: which have finished, which are missing, and what they cost; and a job that can run
anywhere.

A job that is sent to a process has the names of the runs that it builds on, and returns its run's name. Everything else
goes through the ledger and the store.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.records.ledger import RunBusy
from pipeline.records.run_record import RunRecord
from pipeline.records.store import Artifact
from pipeline.runs.sources import Fusion
from pipeline.runs.training_run import TrainingRun
from pipeline.runs.workspace import RunRequest, Workspace
from pipeline.settings.kinds import KINDS
from pipeline.system.errors import PipelineError
from pipeline.training.devices import on_main_process
from stages.compare.plan import Job
from stages.ensemble import EnsembleRun
from stages.pretrain import pretraining_seconds

POLL_SECONDS = 0.5
"""Seconds between two checks of other processes."""
_APPEARS_SECONDS = 60.0
"""How long a network file system may take to show another machine's files."""


class Known:
    """The outcomes of jobs: a run, or an error. A job can start when all jobs that it builds on have an outcome."""

    def __init__(self, workspace: Workspace, kept: Set[Job]) -> None:
        self.workspace, self.kept = workspace, kept
        self.outcomes: dict[Job, RunRecord | PipelineError] = {}

    def get(self, job: Job) -> RunRecord:
        """The run of a job; raises its error if it, or a job that it builds on, failed."""
        outcome = self.outcomes[job]
        if isinstance(outcome, PipelineError):
            raise outcome
        return outcome

    def can_run(self, job: Job) -> bool:
        return all(other in self.outcomes for other in job.built_on)

    def failed(self, job: Job) -> bool:
        """Whether a job that can start will fail, because a job that it builds on or all its trials failed."""
        if any(map(self.has_failed, (*job.needs, *job.takes_models_of))):
            return True
        return bool(job.trials) and (not self.tried(job) or self.has_failed(self.best_trial(job)))

    def has_failed(self, job: Job) -> bool:
        return isinstance(self.outcomes.get(job), PipelineError)

    def tried(self, job: Job) -> dict[Job, RunRecord]:
        """The trials of a job that have not failed, and their runs."""
        return {trial: self.get(trial) for trial in job.trials if not self.has_failed(trial)}

    def best_trial(self, job: Job) -> Job:
        """A job with the recipes of its best trial; raises the first trial's error if all have failed."""
        dev = {trial: record.dev for trial, record in self.tried(job).items()}
        return job.with_best(dev or {job.trials[0]: self.get(job.trials[0]).dev})

    def run(self, job: Job) -> TrainingRun | EnsembleRun:
        """The run of a job; the runs that it builds on are part of its identity."""
        keep_weights = job in self.kept
        if job.trials:
            job = self.best_trial(job)
            if job in self.outcomes:  # what failed is not tried again
                self.get(job)
        kind, workspace = KINDS[job.kind], self.workspace.on(job.backbone)
        sources = [self.get(need) for need in job.needs]
        for each in job.takes_models_of:
            self.get(each)  # raises why it failed
        if kind.is_ensemble:
            return EnsembleRun(workspace.task(job.task), sources, job.rule, job.most, job.seed, workspace)
        parts, adapters = job.parts_in(workspace), self._adapters(sources) if kind.artifact else ()
        if kind.takes == "fusion":
            ((task, recipe, limit),) = parts
            request = Fusion(task, recipe, workspace).request(adapters, seed=job.seed, limit=limit)
        else:
            # Sequential fine-tuning gets a new head (Phang et al. 2019): the source's stays behind.
            start = sources[0] if sources and not kind.artifact else None
            request = RunRequest(
                job.kind,
                parts,
                job.seed,
                adapters=adapters,
                in_turn=job.in_turn,
                tested=job.tested,
                start=start,
                keep_weights=keep_weights,
            )
        return TrainingRun(request, workspace)

    def _adapters(self, sources: Iterable[RunRecord]) -> tuple[Artifact, ...]:
        """The sources' adapters, one a task and order of batches: the best on dev, of equal ones the first."""
        best: dict[tuple[str, int], RunRecord] = {}
        for record in sources:
            key = record.task, record.recipe.reshuffle
            best[key] = max(best.get(key, record), record, key=lambda each: each.dev)
        return tuple(map(self.workspace.adapter_of, best.values()))


class Jobs(Known):
    """The jobs of one study in a workspace. A failed job is not tried again, nor are jobs that build on it.

    What is finished stands on its record. Its model must be there only if the job is among those ``kept``, whose models
    are wanted afterwards, or if something that is missing builds on it: the run is then trained again.

    Args:
        read: jobs that keep their models when they are trained, but need not have them still.
    """

    def __init__(self, jobs: Sequence[Job], workspace: Workspace, kept: Set[Job], read: Set[Job]) -> None:
        self.jobs = jobs
        self._wanted = _with_trials(kept)
        continuing = (job for job in jobs if not KINDS[job.kind].artifact)
        continued = _with_trials(need for job in continuing for need in job.takes_models_of)
        super().__init__(workspace, self._wanted | continued | _with_trials(read))
        # Other commands may finish runs meanwhile, and the processes that train together must agree on what is missing.
        self.outcomes = on_main_process(self._look_up)
        self._miss_lost_models()

    def want(self, jobs: Set[Job]) -> None:
        """Let the models of these jobs be there when all is trained."""
        self._wanted |= _with_trials(jobs)
        self._miss_lost_models()

    def find(self, job: Job) -> RunRecord | None:
        """The run whose scores are those of a job; None if it is missing or failed."""
        outcome = self.outcomes.get(job)
        return outcome if isinstance(outcome, RunRecord) else None

    def seconds(self, job: Job) -> float:
        """Training time of a finished job, of each run that it needed, and of the pretraining of their backbones.

        Trials count where they were run: those of another seed than its own, or than that of what it needed, not.
        """

        def behind(each: Job) -> Iterator[Job]:
            yield each
            for need in each.needs:
                yield from behind(need)

        def records(each: Job) -> Iterator[RunRecord]:
            yield self.get(each)
            yield from (record for record in self.trials(each) if record.seed in (each.seed, job.seed))

        jobs = [*behind(job)]
        runs = {record.run: record.cost.seconds for each in jobs for record in records(each)}
        backbones = {each.backbone for each in jobs if each.backbone is not None}
        return sum(runs.values()) + sum(pretraining_seconds(Path(backbone)) for backbone in backbones)

    @property
    def missing(self) -> list[Job]:
        """The jobs without an outcome."""
        return [job for job in self.jobs if job not in self.outcomes]

    @property
    def to_train(self) -> list[Job]:
        """The missing jobs that train something."""
        return [job for job in self.missing if not job.is_choice]

    def trials(self, job: Job) -> list[RunRecord]:
        """The runs of a job's trials that have not failed."""
        return [*self.tried(job).values()]

    def source_trials(self, job: Job) -> list[RunRecord]:
        """The trials of all jobs that a finished job builds on, except the selected ones."""
        taken = {self.get(need).run for need in job.needs}
        own = [trial for need in job.needs for trial in self.trials(need) if trial.run not in taken]
        return own + [trial for need in job.needs for trial in self.source_trials(need)]

    def look_again(self) -> None:
        """Look everything up again. Another command may have finished a job that failed here. Runs on a model that was
        trained again with another result are now missing."""
        self.outcomes = {job: error for job, error in self.outcomes.items() if isinstance(error, PipelineError)}
        self.outcomes = on_main_process(partial(self._look_up, again=True))

    def _look_up(self, again: bool = False) -> dict[Job, RunRecord | PipelineError]:
        """The jobs that the ledger has.

        A job whose sources are unfinished cannot be identified and counts as missing. So does one that continues a run
        that kept no weights, since their hash is part of its name.
        """
        for job in self.jobs:
            # The second time, errors are known already.
            with suppress(*((PipelineError,) if again else ())):
                if self.can_run(job) and (record := self._recorded(job)) is not None:
                    self.outcomes[job] = record
        return self.outcomes

    def _recorded(self, job: Job) -> RunRecord | None:
        """The ledger's record of a job that can start."""
        if self._continues_no_weights(job):
            return None
        run = self.run(job)
        if isinstance(run, EnsembleRun):
            return run.finished()
        return run.workspace.finished(run.name, with_model=False)

    def _continues_no_weights(self, job: Job) -> bool:
        is_continuing = not KINDS[job.kind].artifact
        return is_continuing and any(self.get(need).weights_sha256 is None for need in job.takes_models_of)

    def _miss_lost_models(self) -> None:
        """Count finished jobs as missing if their model is gone, and is wanted or needed by a missing job."""
        for job in on_main_process(self._lost_models):
            del self.outcomes[job]

    def _lost_models(self) -> Set[Job]:
        outcomes, needed, lost = self.outcomes, {*self._wanted}, set[Job]()
        for job in reversed(self.jobs):  # the runs behind a lost run may be lost too
            if job in needed and job not in lost and self._has_lost_its_model(job):
                # The best trial of a job is its run.
                lost |= {each for each in (job, *job.trials) if outcomes.get(each) == outcomes[job]}
            if job in lost or job not in outcomes:
                needed |= {*job.takes_models_of}
        return lost

    def _has_lost_its_model(self, job: Job) -> bool:
        """Whether the model of a finished run is gone; an ensemble has none."""
        record = self.outcomes.get(job)
        if not isinstance(record, RunRecord) or KINDS[job.kind].is_ensemble:
            return False
        return self.workspace.on(job.backbone).finished(record.run, with_model=True) is None


class Ended(NamedTuple):
    """The answer of a pool's worker: the run of a job, finished, or in training by another command."""

    run: str
    title: str
    is_busy: bool = False


@dataclass(frozen=True)
class RemoteJob:
    """A job with the names of the runs that it builds on, or their errors."""

    job: Job
    is_kept: bool
    built_on: Mapping[Job, str | PipelineError]
    workspace: Workspace

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"workspace": replace(self.workspace)}  # without what this process has read

    def __call__(self) -> Ended:
        """Train the job, unless the ledger has it by now."""
        known = Known(_reopened(self.workspace), {self.job} if self.is_kept else set())
        for job, outcome in self.built_on.items():
            known.outcomes[job] = (
                outcome
                if isinstance(outcome, PipelineError)
                else appeared(outcome, known.workspace.on(job.backbone), job in self.job.takes_models_of)
            )
        run = known.run(self.job)
        try:
            return Ended(run.get().run, run.title)
        except RunBusy:
            return Ended(run.name, run.title, is_busy=True)


_opened: dict[str, Workspace] = {}


def _reopened(workspace: Workspace) -> Workspace:
    """This process's copy of the workspace, with all that it read for earlier cells; one study at a time."""
    key = repr(workspace)
    if key not in _opened:
        _opened.clear()
        _opened[key] = workspace
    return _opened[key]


def appeared(run: str, workspace: Workspace, with_model: bool) -> RunRecord:
    """Wait until this machine sees a run that another process has finished; return its record."""
    end = time.monotonic() + _APPEARS_SECONDS
    while (record := workspace.finished(run, with_model)) is None:
        if time.monotonic() > end:
            raise PipelineError(
                f"run {run} was finished on another machine, but {workspace.ledger.folder(run)} or its artifact in"
                f" {workspace.store_root} is not there: all machines must share --reports and --store"
            )
        time.sleep(POLL_SECONDS)
    return record


def _with_trials(jobs: Iterable[Job]) -> set[Job]:
    """The jobs and their trials, one of which is the run of its job."""
    return {each for job in jobs for each in (job, *job.trials)}
