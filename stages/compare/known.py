"""What is known of the jobs of a study while it runs: the run of each that has finished, or why it failed."""

from collections.abc import Iterable, Set

from pipeline.records.run_record import RunRecord
from pipeline.records.store import Artifact
from pipeline.runs.request import RunRequest
from pipeline.runs.sources import Fusion
from pipeline.runs.training_run import TrainingRun
from pipeline.runs.workspace import Workspace
from pipeline.settings.kinds import KINDS
from pipeline.system.errors import PipelineError
from stages.compare.ensembles import EnsembleRun
from stages.compare.plan import Job


class Known:
    """What is known of jobs: the run of each that has finished, or why it failed. What builds on that can be run.

    The scores of a run stand without its model. If the model is lost but something needs it, the run is trained again.
    """

    def __init__(self, workspace: Workspace, kept: Set[Job]) -> None:
        self.workspace, self.kept = workspace, kept
        self.outcomes: dict[Job, RunRecord | PipelineError] = {}
        self.lost: dict[Job, RunRecord] = {}
        """Runs that are to be trained again, or failed to be, because their models are lost."""

    def get(self, job: Job, with_model: bool = False) -> RunRecord:
        """The run of a job; its error if it failed, or something it builds on did.

        Args:
            with_model: whether its model is needed too, so that a run whose model could not be made again has failed.
        """
        if job in self.lost and not with_model:
            return self.lost[job]
        outcome = self.outcomes[job]
        if isinstance(outcome, PipelineError):
            raise outcome
        return outcome

    def can_run(self, job: Job) -> bool:
        return all(other in self.outcomes for other in job.built_on)

    def failed(self, job: Job) -> bool:
        """Whether a job that can be run will fail, because something it builds on has, or its trials have."""
        models = job.takes_models_of
        if any(self._failed(each, with_model=each in models) for each in (*job.needs, *models)):
            return True
        return bool(job.trials) and (not self.tried(job) or self._failed(self.best_trial(job), with_model=True))

    def tried(self, job: Job) -> dict[Job, RunRecord]:
        """The trials of a job that did not fail, and their runs."""
        return {trial: self.get(trial) for trial in job.trials if not self._failed(trial)}

    def _failed(self, job: Job, with_model: bool = False) -> bool:
        is_lost = job in self.lost and not with_model
        return not is_lost and isinstance(self.outcomes.get(job), PipelineError)

    def best_trial(self, job: Job) -> Job:
        """A job with trials as the one that it becomes: with the best one's recipes, where all failed its reason."""
        dev = {trial: record.dev for trial, record in self.tried(job).items()}
        return job.with_best(dev or {job.trials[0]: self.get(job.trials[0]).dev})

    def run(self, job: Job) -> TrainingRun | EnsembleRun:
        """The run of a job, which is identified by those that it builds on."""
        keep_weights = job in self.kept
        if job.trials:
            job = self.best_trial(job)
            if job in self.outcomes:  # what failed is not tried again
                self.get(job, with_model=True)
        kind, workspace = KINDS[job.kind], self.workspace.on(job.backbone)
        models = {each: self.get(each, with_model=True) for each in job.takes_models_of}
        sources = [models.get(need) or self.get(need) for need in job.needs]
        if kind.is_ensemble:
            return EnsembleRun(workspace.task(job.task), sources, job.rule, job.most, job.seed, workspace)
        parts, adapters = job.parts_in(workspace), self._adapters(sources) if kind.takes_adapters else ()
        if kind.takes == "fusion":
            ((task, recipe, limit),) = parts
            request = Fusion(task, recipe, workspace).request(adapters, seed=job.seed, limit=limit)
        else:
            # Sequential fine-tuning gets a new head (Phang et al. 2019): the source's stays behind.
            start = sources[0] if sources and not kind.takes_adapters else None
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
