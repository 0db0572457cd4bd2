"""Jobs of a study become runs: found in the ledger or trained, each once, with a line on how far the study is."""

import sys
import time
from collections.abc import Iterable, Iterator, Sequence, Set
from pathlib import Path

from pipeline.records.ledger import RunBusy, RunRecord
from pipeline.records.store import Artifact
from pipeline.runs.request import RunRequest
from pipeline.runs.sources import Fusion
from pipeline.runs.training_run import TrainingRun
from pipeline.runs.workspace import Workspace
from pipeline.settings.rows import METHODS
from pipeline.system.errors import PipelineError
from pipeline.training.devices import is_main_process, on_main_process
from stages.compare.ensembles import EnsembleRun
from stages.compare.estimate import Estimate
from stages.compare.plan import Job
from stages.pretrain import pretraining_seconds

_POLL_SECONDS = 0.5


class Jobs:
    """The jobs of one study in a workspace. What failed once is not tried again, nor what builds on it.

    The models of the jobs ``kept`` are wanted afterwards.
    """

    def __init__(self, jobs: Sequence[Job], workspace: Workspace, estimate: Estimate, kept: Set[Job]) -> None:
        self.jobs, self.workspace, self.estimate = jobs, workspace, estimate
        continued = (job for job in jobs if not (METHODS[job.kind].takes_adapters or METHODS[job.kind].is_ensemble))
        kept = kept | {need for job in continued for need in job.needs}
        # The best trial is the run of its job, which must not be trained again to have its weights.
        self._kept = kept | {trial for job in kept for trial in job.trials}
        self._outcomes: dict[Job, RunRecord | PipelineError] = {}
        # Other commands may finish runs meanwhile, and the processes that train together must agree on what is missing.
        self._outcomes = on_main_process(self._look_up)
        self._to_train = self.to_train

    def seconds(self, job: Job) -> float:
        """Training time of a finished job, of each run that it needed, and of its own backbone's pretraining.

        Trials count where they were run: those of another seed not.
        """

        def behind(job: Job) -> Iterator[RunRecord]:
            yield self.get(job)
            yield from (record for record in self.trials(job) if record.seed == job.seed)
            for need in job.needs:
                yield from behind(need)

        runs = {record.run: record.cost.seconds for record in behind(job)}
        return (pretraining_seconds(Path(job.backbone)) if job.backbone is not None else 0.0) + sum(runs.values())

    @property
    def missing(self) -> list[Job]:
        """The jobs that are neither finished nor have failed."""
        return [job for job in self.jobs if job not in self._outcomes]

    @property
    def to_train(self) -> list[Job]:
        """Those of them that train something themselves."""
        return [job for job in self.missing if not job.is_choice]

    def trials(self, job: Job) -> list[RunRecord]:
        """The runs of the trials of a job that did not fail."""
        return [record for trial in job.trials if isinstance(record := self._outcomes[trial], RunRecord)]

    def train(self) -> None:
        """Finish every job, or learn why it fails.

        Runs that other commands are training come last. They are waited for, then taken from the ledger, or trained
        here if the other command did not finish them.
        """
        if is_main_process():
            for job in self._outcomes:
                self.workspace.ledger.tidy(self.get(job).run)
        while jobs := self.missing:
            busy = [run for job in jobs if (run := self._try(job)) is not None]
            if busy:
                self._wait_for_any(busy)

    def get(self, job: Job) -> RunRecord:
        """The run of a job, after :meth:`train`; its error if it failed, or something it builds on did."""
        outcome = self._outcomes[job]
        if isinstance(outcome, PipelineError):
            raise outcome
        return outcome

    def _try(self, job: Job) -> TrainingRun | EnsembleRun | None:
        """Train a job unless what it needs is yet to come; returns its run if another command is training it."""
        if not self._can_run(job):
            return None
        run: TrainingRun | EnsembleRun | None = None
        try:
            run = self._run(job)
            self._outcomes[job] = record = run.get()
            self.estimate.learn(record)
        except RunBusy:
            return run
        except PipelineError as error:
            self._outcomes[job] = error
        self._tell(job)
        return None

    def _wait_for_any(self, runs: Sequence[TrainingRun | EnsembleRun]) -> None:
        """Return when one of ``runs``, which other commands are training, is no longer being trained."""
        if is_main_process():
            more = f" and {len(runs) - 1} more" if len(runs) > 1 else ""
            waiting = f"waiting for run {runs[0].name} ({runs[0].title}){more}: another command is training it"
            print(waiting, file=sys.stderr, flush=True)
        time.sleep(_POLL_SECONDS)
        while on_main_process(lambda: all(self.workspace.ledger.is_busy(run.name) for run in runs)):
            time.sleep(_POLL_SECONDS)

    def _look_up(self) -> dict[Job, RunRecord | PipelineError]:
        """The jobs that the ledger has. One whose sources are unfinished cannot be identified and counts as missing."""
        for job in self.jobs:
            if self._can_run(job) and (record := self._run(job).finished()) is not None:
                self._outcomes[job] = record
        return self._outcomes

    def _can_run(self, job: Job) -> bool:
        return all(other in self._outcomes for other in (*job.needs, *job.trials))

    def _run(self, job: Job) -> TrainingRun | EnsembleRun:
        keep_weights = job in self._kept
        if job.trials:
            outcomes = {trial: self._outcomes[trial] for trial in job.trials}
            dev = {trial: record.dev for trial, record in outcomes.items() if isinstance(record, RunRecord)}
            # Where all failed, with the first one's reason.
            job = job.with_best(dev or {job.trials[0]: self.get(job.trials[0]).dev})
        traits, workspace = METHODS[job.kind], self.workspace.on(job.backbone)
        sources = [self.get(need) for need in job.needs]
        if traits.is_ensemble:
            return EnsembleRun(workspace.task(job.task), sources, job.rule, job.most, job.seed, workspace)
        parts, adapters = job.parts_in(workspace), self._adapters(sources) if traits.takes_adapters else ()
        if job.kind == "fusion":
            ((task, recipe, limit),) = parts
            request = Fusion(task, recipe, workspace).request(adapters, seed=job.seed, limit=limit)
        else:
            # Sequential tuning gets a new head (Phang et al. 2019): the source's stays behind.
            start = sources[0] if sources and not traits.takes_adapters else None
            request = RunRequest(job.kind, parts, job.seed, adapters, start, keep_weights)
        return TrainingRun(request, workspace)

    def _adapters(self, sources: Iterable[RunRecord]) -> tuple[Artifact, ...]:
        """The sources' adapters, one a task: the best on dev, of equal ones the first."""
        best: dict[str, RunRecord] = {}
        for record in sources:
            best[record.task] = max(best.get(record.task, record), record, key=lambda each: each.dev)
        found = (self.workspace.store.find(record.run) for record in best.values())
        return tuple(artifact for artifact in found if artifact is not None)

    def _tell(self, job: Job) -> None:
        if not is_main_process() or job.is_choice:
            return
        try:
            scores = {part.task: self.get(job).score(part.task) for part in job.parts}
            outcome = ", ".join(f"{task} {score.metric} {score.dev:.4f}" for task, score in scores.items())
        except PipelineError as error:
            outcome = f"failed: {error}"
        left, count = self.to_train, len(self._to_train)
        time_left = f", {self.estimate.total(left)} left" if left else ""
        print(f"[{count - len(left)}/{count} runs{time_left}] {job.title}: {outcome}", file=sys.stderr, flush=True)
