"""Jobs of a study become runs: found in the ledger or trained, each once, with a line on how far the study is.

They are trained in this process, or in those of a pool: there a job is pickled together with the names of the runs that
it builds on, and answers with the name of its own. Everything else goes through the ledger and the store.
"""

import pickle
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from rich.text import Text

from pipeline.executors.pool import Outcome, Pool, bug
from pipeline.records.ledger import RunBusy
from pipeline.records.run_record import RunRecord
from pipeline.records.store import Artifact
from pipeline.runs.request import RunRequest
from pipeline.runs.sources import Fusion
from pipeline.runs.training_run import TrainingRun
from pipeline.runs.weights import ARTIFACT_KINDS
from pipeline.runs.workspace import Workspace
from pipeline.settings.rows import TRAITS
from pipeline.system.errors import PipelineError
from pipeline.system.process import is_main_process
from pipeline.system.streams import notice
from pipeline.training.process_group import on_main_process, process_count
from pipeline.training.progress import console
from stages.compare.ensembles import EnsembleRun
from stages.compare.estimate import Estimate
from stages.compare.plan import Job
from stages.pretrain import pretraining_seconds

_POLL_SECONDS = 0.5
_APPEARS_SECONDS = 60.0
"""How long a network file system may take to show what another machine has written."""


class Known:
    """What is known of jobs: the run of each that has finished, or why it failed. What builds on that can be run."""

    def __init__(self, workspace: Workspace, kept: Set[Job]) -> None:
        self.workspace, self.kept = workspace, kept
        self.outcomes: dict[Job, RunRecord | PipelineError] = {}

    def get(self, job: Job) -> RunRecord:
        """The run of a job; its error if it failed, or something it builds on did."""
        outcome = self.outcomes[job]
        if isinstance(outcome, PipelineError):
            raise outcome
        return outcome

    def can_run(self, job: Job) -> bool:
        return all(other in self.outcomes for other in (*job.needs, *job.trials))

    def failed(self, job: Job) -> bool:
        """Whether a job that can be run will fail, because something it builds on has, or all its trials."""

        def fails(each: Job) -> bool:
            return isinstance(self.outcomes[each], PipelineError)

        return any(map(fails, job.needs)) or (bool(job.trials) and all(map(fails, job.trials)))

    def best_trial(self, job: Job) -> Job:
        """A job with trials as the one that it becomes: with the best one's recipes, where all failed its reason."""
        outcomes = {trial: self.outcomes[trial] for trial in job.trials}
        dev = {trial: record.dev for trial, record in outcomes.items() if isinstance(record, RunRecord)}
        return job.with_best(dev or {job.trials[0]: self.get(job.trials[0]).dev})

    def run(self, job: Job) -> TrainingRun | EnsembleRun:
        """The run of a job, which is identified by those that it builds on."""
        keep_weights = job in self.kept
        if job.trials:
            job = self.best_trial(job)
        traits, workspace = TRAITS[job.kind], self.workspace.on(job.backbone)
        sources = [self.get(need) for need in job.needs]
        if traits.is_ensemble:
            return EnsembleRun(workspace.task(job.task), sources, job.rule, job.most, job.seed, workspace)
        parts, adapters = job.parts_in(workspace), self._adapters(sources) if traits.takes_adapters else ()
        if job.kind == "fusion":
            ((task, recipe, limit),) = parts
            request = Fusion(task, recipe, workspace).request(adapters, seed=job.seed, limit=limit)
        else:
            # Sequential fine-tuning gets a new head (Phang et al. 2019): the source's stays behind.
            start = sources[0] if sources and not traits.takes_adapters else None
            request = RunRequest(
                job.kind,
                parts,
                job.seed,
                adapters=adapters,
                in_turn=job.in_turn,
                start=start,
                keep_weights=keep_weights,
            )
        return TrainingRun(request, workspace)

    def _adapters(self, sources: Iterable[RunRecord]) -> tuple[Artifact, ...]:
        """The sources' adapters, one a task: the best on dev, of equal ones the first."""
        best: dict[str, RunRecord] = {}
        for record in sources:
            best[record.task] = max(best.get(record.task, record), record, key=lambda each: each.dev)
        return tuple(map(self.workspace.adapter_of, best.values()))


class Ended(NamedTuple):
    """What a pool's worker answers: the run of a job, which it has finished, or which another command is training."""

    run: str
    title: str
    is_busy: bool = False


@dataclass(frozen=True)
class RemoteJob:
    """A job for another process, with the names of the runs that it builds on, or why these failed."""

    job: Job
    is_kept: bool
    built_on: Mapping[Job, str | PipelineError]
    workspace: Workspace

    def __call__(self) -> Ended:
        """Train the job, if the ledger still does not have it."""
        known = Known(_reopened(self.workspace), {self.job} if self.is_kept else set())
        for job, outcome in self.built_on.items():
            known.outcomes[job] = (
                outcome
                if isinstance(outcome, PipelineError)
                else _appeared(outcome, known.workspace.on(job.backbone), job in self.job.takes_models_of)
            )
        run = known.run(self.job)
        try:
            return Ended(run.get().run, run.title)
        except RunBusy:
            return Ended(run.name, run.title, is_busy=True)


_opened: dict[str, Workspace] = {}


def _reopened(workspace: Workspace) -> Workspace:
    """The workspace as this process has it, with all that was read for earlier cells; of one study at a time."""
    key = repr(workspace)
    if key not in _opened:
        _opened.clear()
        _opened[key] = workspace
    return _opened[key]


def _appeared(run: str, workspace: Workspace, with_model: bool) -> RunRecord:
    """A run that another process has finished, as soon as it can be seen here."""
    end = time.monotonic() + _APPEARS_SECONDS
    while (record := workspace.finished(run, with_model)) is None:
        if time.monotonic() > end:
            raise PipelineError(
                f"run {run} was finished on another machine, but {workspace.ledger.folder(run)} or its artifact in"
                f" {workspace.store_root} is not there: all machines must share --reports and --store"
            )
        time.sleep(_POLL_SECONDS)
    return record


class Jobs:
    """The jobs of one study in a workspace. What failed once is not tried again, nor what builds on it.

    What is finished stands on its record. Its model must be there only if the job is among those ``kept``, whose models
    are wanted afterwards, or if something that is missing builds on it.
    """

    def __init__(self, jobs: Sequence[Job], workspace: Workspace, estimate: Estimate, kept: Set[Job]) -> None:
        self.jobs, self.workspace, self.estimate = jobs, workspace, estimate
        self._wanted = kept | {trial for job in kept for trial in job.trials}
        continued = (job for job in jobs if not TRAITS[job.kind].takes_adapters)
        built_on = {need for job in continued for need in job.takes_models_of}
        # The best trial is the run of its job, which must not be trained again to have its weights.
        self._known = Known(workspace, self._wanted | built_on | {trial for job in built_on for trial in job.trials})
        self._lost: dict[Job, RunRecord] = {}
        # Other commands may finish runs meanwhile, and the processes that train together must agree on what is missing.
        self._known.outcomes, self._lost = on_main_process(self._look_up)
        self._count = len(self.to_train)
        self.get: Callable[[Job], RunRecord] = self._known.get
        """The run of a job, after :meth:`train`; its error if it failed, or something it builds on did."""

    def seconds(self, job: Job) -> float:
        """Training time of a finished job, of each run that it needed, and of its own backbone's pretraining.

        Trials count where they were run: those of another seed than its own, or than that of what it needed, not.
        """

        def behind(each: Job) -> Iterator[RunRecord]:
            yield self.get(each)
            yield from (record for record in self.trials(each) if record.seed in (each.seed, job.seed))
            for need in each.needs:
                yield from behind(need)

        runs = {record.run: record.cost.seconds for record in behind(job)}
        return (pretraining_seconds(Path(job.backbone)) if job.backbone is not None else 0.0) + sum(runs.values())

    @property
    def missing(self) -> list[Job]:
        """The jobs that are neither finished nor have failed."""
        return [job for job in self.jobs if job not in self._known.outcomes]

    @property
    def to_train(self) -> list[Job]:
        """Those of them that train something themselves."""
        return [job for job in self.missing if not job.is_choice]

    def trials(self, job: Job) -> list[RunRecord]:
        """The runs of the trials of a job that did not fail."""
        return [record for trial in job.trials if isinstance(record := self._known.outcomes[trial], RunRecord)]

    def train(self) -> None:
        """Finish every job in this process, or learn why it fails.

        Runs that other commands are training come last. They are waited for, then taken from the ledger, or trained
        here if the other command did not finish them.
        """
        self._tidy()
        while jobs := self.missing:
            busy = [run for job in jobs if (run := self._try(job)) is not None]
            if busy:
                self._wait_for_any(busy)

    def train_in(self, pool: Pool) -> None:
        """As :meth:`train` in the processes of ``pool``, each job as soon as what it builds on is known."""
        self._tidy()
        numbers = {job: number for number, job in enumerate(self.jobs)}
        workspace = self.workspace
        if (memory := pool.memory_gb) is not None:  # half of it is for caches; the rest for models and their training
            workspace = replace(workspace, cache_gb=min(workspace.cache_gb, memory / 2))
        running: dict[int, Job] = {}
        elsewhere: dict[Job, Ended] = {}
        places = ""
        with console.status("") as status:
            while missing := self.missing:
                if pool.places != places:
                    places = pool.places
                    notice(places)
                for job in missing:
                    if numbers[job] in running or not self._known.can_run(job):
                        continue
                    if job in elsewhere and self.workspace.ledger.is_busy(elsewhere[job].run):
                        continue
                    if self._settle(job):
                        break  # what builds on it may come before the rest
                    if len(running) < pool.at_once:
                        pool.start(numbers[job], job.title, self._remote_job(job, workspace))
                        running[numbers[job]] = job
                else:
                    names = ", ".join(job.title for job in running.values())
                    status.update(Text(f"{len(running)} running: {names}", no_wrap=True, overflow="ellipsis"))
                    for number, outcome in pool.wait(_POLL_SECONDS):
                        self._take(running.pop(number), outcome, elsewhere, pool.at_once)

    def _remote_job(self, job: Job, workspace: Workspace) -> bytes:
        outcomes = {each: self._known.outcomes[each] for each in (*job.needs, *job.trials)}
        built_on = {each: out if isinstance(out, PipelineError) else out.run for each, out in outcomes.items()}
        # A new workspace: what this process has read stays here.
        return pickle.dumps(RemoteJob(job, job in self._known.kept, built_on, replace(workspace)))

    def _settle(self, job: Job) -> bool:
        """Whether a job needs no training: it fails with what it builds on, one of its trials is its run, or it joins
        the predictions of others."""
        if self._known.failed(job):
            self._try(job)
            return True
        if TRAITS[job.kind].is_ensemble:
            self._try(job)  # a moment
        elif job.is_choice and (best := self._known.best_trial(job)) in self._known.outcomes:
            self._known.outcomes[job] = self._known.outcomes[best]
        return job in self._known.outcomes

    def _take(self, job: Job, outcome: Outcome, elsewhere: dict[Job, Ended], at_once: int) -> None:
        """Note how a job ended in the pool."""
        ended: Ended | None = outcome.value
        if ended is not None and ended.is_busy:
            if job not in elsewhere:
                self._tell_waiting(ended.run, ended.title)
            elsewhere[job] = ended
            return
        try:
            if ended is None:
                raise outcome.error or PipelineError("its worker ended without a result: see standard error")
            self._learn(job, _appeared(ended.run, self.workspace.on(job.backbone), job in self._known.kept))
        except PipelineError as error:
            self._known.outcomes[job] = error
        self._tell(job, outcome.place, at_once)

    def _tidy(self) -> None:
        if is_main_process():
            for job in self._known.outcomes:
                self.workspace.ledger.tidy(self.get(job).run)

    def _try(self, job: Job) -> TrainingRun | EnsembleRun | None:
        """Train a job unless what it needs is yet to come; returns its run if another command is training it."""
        if not self._known.can_run(job):
            return None
        run: TrainingRun | EnsembleRun | None = None
        try:
            run = self._known.run(job)
            self._learn(job, run.get())
        except RunBusy:
            return run
        except PipelineError as error:
            self._known.outcomes[job] = error
        except OSError:  # whatever the machine refuses it would refuse the next run too, as where the disk is full
            raise
        except Exception as error:
            if process_count() > 1:  # the processes that train together would wait for this one
                raise
            self._known.outcomes[job] = bug(error)
        self._tell(job)
        return None

    def _wait_for_any(self, runs: Sequence[TrainingRun | EnsembleRun]) -> None:
        """Return when one of ``runs``, which other commands are training, is no longer being trained."""
        if is_main_process():
            self._tell_waiting(runs[0].name, runs[0].title, len(runs) - 1)
        time.sleep(_POLL_SECONDS)
        while on_main_process(lambda: all(self.workspace.ledger.is_busy(run.name) for run in runs)):
            time.sleep(_POLL_SECONDS)

    def _look_up(self) -> tuple[dict[Job, RunRecord | PipelineError], dict[Job, RunRecord]]:
        """The jobs that the ledger has, and those whose model is lost and needed.

        One whose sources are unfinished cannot be identified and counts as missing.
        """
        known = self._known
        for job in self.jobs:
            if not known.can_run(job):
                continue
            run = known.run(job)
            is_ensemble = isinstance(run, EnsembleRun)
            record = run.finished() if is_ensemble else self._finished(job, run.name, job in self._wanted)
            if record is not None:
                known.outcomes[job] = record
        self._miss_lost_models()
        return known.outcomes, self._lost

    def _finished(self, job: Job, run: str, with_model: bool) -> RunRecord | None:
        record = self.workspace.on(job.backbone).finished(run, with_model)
        # What continues a run has the hash of its weights in its name: one that never kept any is trained again.
        is_nameless = record is not None and record.kind not in ARTIFACT_KINDS and record.weights_sha256 is None
        return None if is_nameless and job in self._known.kept else record

    def _miss_lost_models(self) -> None:
        """Count as missing what has finished, but whose model is gone and is what something missing builds on."""
        outcomes, seen = self._known.outcomes, set[Job]()
        for job in reversed(self.jobs):  # what a lost run is built on may be lost too
            for need in () if job in outcomes else job.takes_models_of:
                record = outcomes.get(need)
                if need in seen or not isinstance(record, RunRecord):
                    continue
                seen.add(need)
                if self._finished(need, record.run, with_model=True) is None:
                    same = [each for each in (need, *need.trials) if outcomes.get(each) == record]
                    self._lost |= dict.fromkeys(same, record)
                    for each in same:
                        del outcomes[each]

    def _learn(self, job: Job, record: RunRecord) -> None:
        """Note a run. One that was lost may come out otherwise on another machine: what was built on it is missing."""
        outcomes, lost = self._known.outcomes, self._lost.pop(job, None)
        outcomes[job] = record
        self.estimate.learn(record)
        if lost is None or lost.model_sha256 == record.model_sha256:
            return
        stale = {job}
        for other in self.jobs:
            # A trial of another seed only chose the recipe.
            if stale.isdisjoint((*other.needs, *(other.trials if other.is_choice else ()))):
                continue
            stale.add(other)
            if isinstance(outcomes.get(other), RunRecord):
                self._count += not other.is_choice
                del outcomes[other]
        self._miss_lost_models()

    def _tell_waiting(self, run: str, title: str, others: int = 0) -> None:
        more = f" and {others} more" if others else ""
        notice(f"waiting for run {run} ({title}){more}: another command is training it")

    def _tell(self, job: Job, place: str = "", at_once: int = 1) -> None:
        if not is_main_process() or job.is_choice:
            return
        try:
            scores = {part.task: self.get(job).score(part.task) for part in job.parts}
            outcome = ", ".join(f"{task} dev {score.metric} {score.dev:.4f}" for task, score in scores.items())
        except PipelineError as error:
            outcome = f"failed: {error}"
        left, count = self.to_train, self._count
        time_left = f", {self.estimate.total(left, at_once)} left" if left else ""
        where = f" ({place})" if place else ""
        done = count - len(left)
        notice(f"[{done}/{count} runs{time_left}] {job.title}: {outcome}{where}")
