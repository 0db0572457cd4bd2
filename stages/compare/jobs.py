"""The jobs of a study as the ledger has them: which have finished, which are missing, what each cost."""

from collections.abc import Iterator, Sequence, Set
from pathlib import Path

from pipeline.records.run_record import RunRecord
from pipeline.runs.weights import ARTIFACT_KINDS
from pipeline.runs.workspace import Workspace
from pipeline.settings.rows import TRAITS
from pipeline.system.errors import PipelineError
from pipeline.system.process import is_main_process
from pipeline.training.process_group import on_main_process
from stages.compare.ensembles import EnsembleRun
from stages.compare.known import Known
from stages.compare.plan import Job
from stages.pretrain import pretraining_seconds


class Jobs:
    """The jobs of one study in a workspace. What failed once is not tried again, nor what builds on it.

    What is finished stands on its record. Its model must be there only if the job is among those ``kept``, whose models
    are wanted afterwards, or if something that is missing builds on it.
    """

    def __init__(self, jobs: Sequence[Job], workspace: Workspace, kept: Set[Job]) -> None:
        self.jobs, self.workspace = jobs, workspace
        self._wanted = kept | {trial for job in kept for trial in job.trials}
        continued = (job for job in jobs if not TRAITS[job.kind].takes_adapters)
        built_on = {need for job in continued for need in job.takes_models_of}
        # The best trial is the run of its job, which must not be trained again to have its weights.
        self.known = Known(workspace, self._wanted | built_on | {trial for job in built_on for trial in job.trials})
        self._lost: dict[Job, RunRecord] = {}
        # Other commands may finish runs meanwhile, and the processes that train together must agree on what is missing.
        self.known.outcomes, self._lost = on_main_process(self._look_up)

    def get(self, job: Job) -> RunRecord:
        """The run of a job that is not missing; its error if it failed, or something it builds on did."""
        return self.known.get(job)

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
        return [job for job in self.jobs if job not in self.known.outcomes]

    @property
    def to_train(self) -> list[Job]:
        """Those of them that train something themselves."""
        return [job for job in self.missing if not job.is_choice]

    def trials(self, job: Job) -> list[RunRecord]:
        """The runs of the trials of a job that did not fail."""
        return [record for trial in job.trials if isinstance(record := self.known.outcomes[trial], RunRecord)]

    def finish(self, job: Job, record: RunRecord) -> None:
        """Note a run. One that was lost may come out otherwise on another machine: what was built on it is missing."""
        outcomes, lost = self.known.outcomes, self._lost.pop(job, None)
        outcomes[job] = record
        if lost is None or lost.model_sha256 == record.model_sha256:
            return
        stale = {job}
        for other in self.jobs:
            # A trial of another seed only chose the recipe.
            if stale.isdisjoint((*other.needs, *(other.trials if other.is_choice else ()))):
                continue
            stale.add(other)
            if isinstance(outcomes.get(other), RunRecord):
                del outcomes[other]
        self._miss_lost_models()

    def fail(self, job: Job, error: PipelineError) -> None:
        """Note why a job has no run."""
        self.known.outcomes[job] = error

    def tidy(self) -> None:
        """Remove what interrupted commands have left beside the finished runs."""
        if is_main_process():
            for job in self.known.outcomes:
                self.workspace.ledger.tidy(self.get(job).run)

    def _look_up(self) -> tuple[dict[Job, RunRecord | PipelineError], dict[Job, RunRecord]]:
        """The jobs that the ledger has, and those whose model is lost and needed.

        One whose sources are unfinished cannot be identified and counts as missing.
        """
        known = self.known
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
        return None if is_nameless and job in self.known.kept else record

    def _miss_lost_models(self) -> None:
        """Count as missing what has finished, but whose model is gone and is what something missing builds on."""
        outcomes, seen = self.known.outcomes, set[Job]()
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
