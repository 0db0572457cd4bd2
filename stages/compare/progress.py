"""Lines on how far a study is: one for each job that ends, with its scores and the time that is left."""

from pipeline.records.run_record import RunRecord
from pipeline.system.errors import PipelineError
from pipeline.system.process import is_main_process
from pipeline.system.streams import notice
from stages.compare.estimate import Estimate
from stages.compare.jobs import Jobs
from stages.compare.plan import Job


class Progress:
    """Tells how far ``jobs`` are, on the main process. The ``estimate`` of the time learns from each run that ends."""

    def __init__(self, jobs: Jobs, estimate: Estimate) -> None:
        self.jobs, self.estimate = jobs, estimate
        self._ended = 0

    def begin(self, name: str) -> None:
        """Tell how many runs of the study ``name`` are done."""
        if not is_main_process():
            return
        left, count = self.jobs.to_train, sum(not job.is_choice for job in self.jobs.jobs)
        time = f", {self.estimate.total(left)}" if left else ""
        notice(f"study {name}: {count - len(left)} of {count} runs done{time}")

    def end(self, job: Job, place: str = "", at_once: int = 1) -> None:
        """Tell how a job has ended, where (if not here), and how long the rest takes, ``at_once`` jobs at a time."""
        if not is_main_process():
            return
        try:
            record = self.jobs.get(job)
        except PipelineError as error:
            outcome = f"failed: {error}"
        else:
            self.estimate.learn(record)
            outcome = self._scores(job, record)
        if job.is_choice:
            return
        self._ended += 1
        left = self.jobs.to_train
        time_left = f", {self.estimate.total(left, at_once)} left" if left else ""
        where = f" ({place})" if place else ""
        notice(f"[{self._ended}/{self._ended + len(left)} runs{time_left}] {job.title}: {outcome}{where}")

    def wait(self, run: str, title: str, others: int = 0) -> None:
        """Tell that a run, and so many ``others``, are waited for."""
        if is_main_process():
            more = f" and {others} more" if others else ""
            notice(f"waiting for run {run} ({title}){more}: another command is training it")

    @staticmethod
    def _scores(job: Job, record: RunRecord) -> str:
        scores = {part.task: record.score(part.task) for part in job.parts}
        return ", ".join(f"{task} dev {score.metric} {score.dev:.4f}" for task, score in scores.items())
