"""The progress of a study, and an estimate of the remaining time from finished runs on the same backbone."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pipeline.records.run_record import RunRecord
from pipeline.runs.workspace import Workspace
from pipeline.settings.kinds import KINDS
from pipeline.settings.recipe import Recipe
from pipeline.settings.rows import Method
from pipeline.system.errors import PipelineError
from pipeline.system.process import is_main_process
from pipeline.system.streams import notice
from pipeline.training.terms import extra_passes
from stages.compare.jobs import Jobs
from stages.compare.plan import Job

_MOST = 1000
"""Maximum number of runs to learn from; reading more takes long and adds little."""


@dataclass(frozen=True)
class Duration:
    """Seconds of the jobs whose time can be estimated, and the number of the other jobs."""

    seconds: float
    unknown: int = 0

    def __str__(self) -> str:
        if self.unknown and not self.seconds:
            return "unknown time"
        minutes, seconds = divmod(round(self.seconds), 60)
        hours, minutes = divmod(minutes, 60)
        about = f"{hours} h {minutes:02d} min" if hours else f"{minutes}:{seconds:02d} min"
        return f"{'more than' if self.unknown else 'about'} {about}"


class Work(NamedTuple):
    """The work of a run: rows trained on, over all epochs, and rows scored."""

    trained: float
    scored: float
    training: float
    """Rows trained on times passes; a forward pass counts one, a backward pass two."""


class Estimate:
    """Estimates the seconds of a job: its rows times the seconds per row in finished runs of its method and backbone.

    Runs on the same task are preferred. Additional terms of the loss count as additional passes.
    """

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self._runs: dict[str, str] = {}
        """The finished runs learned from, with the hash of their backbone's weights."""
        self._spent = defaultdict[tuple[str, Method, frozenset[str] | None], np.ndarray](lambda: np.zeros((2, 2)))
        """Rows and seconds of training and scoring, by backbone, method and tasks (None: all tasks)."""
        self._works: dict[Job, Work] = {}
        for name in workspace.ledger.newest(_MOST):
            # The command that needs a damaged record reports it.
            with suppress(PipelineError):
                if (record := workspace.ledger.find(name)) is not None:
                    self.learn(record)

    def learn(self, record: RunRecord) -> None:
        """Learn from a finished run."""
        weights = record.backbone_weights
        if weights is None or record.run in self._runs:  # an ensemble has no weights of its own
            return
        train = {task: record.scores[task].train_rows for task in record.trained_on}
        if 0 in train.values():  # nothing was trained, as in a pruned fusion
            return
        self._runs[record.run] = weights
        scores, cost = [record.scores[task] for task in record.trained_on], record.cost
        work = _work(record.recipe, train, [score.rows for score in scores])
        training = min(work.trained / cost.examples_per_second, cost.seconds) if cost.examples_per_second else 0.0
        spent = [[work.training, work.scored], [training, cost.seconds - training]]
        for tasks in (None, frozenset(record.trained_on)):
            self._spent[weights, record.kind, tasks] += spent

    def learned_from(self, jobs: Iterable[Job]) -> int:
        """Number of finished runs on the backbones of ``jobs``."""
        backbones = {self._weights(job) for job in jobs}
        return sum(weights in backbones for weights in self._runs.values())

    def total(self, jobs: Iterable[Job], at_once: int = 1) -> Duration:
        """The time of all ``jobs``, with ``at_once`` of them running in parallel."""
        times = [self.seconds(job) for job in jobs]
        return Duration(sum(seconds for seconds in times if seconds is not None) / at_once, times.count(None))

    def seconds(self, job: Job) -> float | None:
        """The time of a job; None if no run of its method has finished on its backbone."""
        if KINDS[job.kind].is_ensemble:
            return 0.0
        weights, tasks = self._weights(job), frozenset(part.task for part in job.parts)
        known = [key for key in ((weights, job.kind, tasks), (weights, job.kind, None)) if key in self._spent]
        if not known:
            return None
        if job not in self._works:
            self._works[job] = self.work(job)
        rows, seconds = self._spent[known[0]]
        work = np.array([self._works[job].training, self._works[job].scored])
        return float((work * seconds / np.maximum(rows, 1)).sum())

    def _weights(self, job: Job) -> str:
        return self.workspace.on(job.backbone).backbone.weights_hash

    def work(self, job: Job) -> Work:
        """The work of a training job."""
        workspace, recipe = self.workspace, job.parts[0].recipe
        data = {
            task.name: workspace.splits.of(task, limit, job.seed, own.extra)
            for task, own, limit in job.parts_in(workspace)
        }
        recipe = recipe.model_copy(update=recipe.budget)
        train = {task: len(rows.train) for task, rows in data.items()}
        return _work(recipe, train, [len(rows.dev) for rows in data.values()])


def _work(recipe: Recipe, train: Mapping[str, int], dev: list[int]) -> Work:
    steps = recipe.joint_steps({task: recipe.steps_over(rows) for task, rows in train.items()})
    batches = steps * (len(train) if recipe.joint.mixing == "simultaneous" else 1)
    epochs = 0 if recipe.is_averaged else recipe.epochs_of(steps)
    scores_start = recipe.score_start or recipe.is_averaged
    scorings = sum(recipe.scored(epoch, epochs) for epoch in range(1, epochs + 1)) + bool(scores_start)
    # Batches are full but for a pass's last one.
    share = sum(train.values()) / sum(map(recipe.steps_over, train.values()))
    trained = batches * share * epochs
    return Work(trained, scorings * sum(dev), trained * (3 + extra_passes(recipe)))


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
        """Say that the study waits for a run, and for ``others`` more."""
        if is_main_process():
            more = f" and {others} more" if others else ""
            notice(f"waiting for run {run} ({title}){more}: another command is training it")

    @staticmethod
    def _scores(job: Job, record: RunRecord) -> str:
        scores = {part.task: record.score(part.task) for part in job.parts}
        return ", ".join(f"{task} dev {score.metric} {score.dev:.4f}" for task, score in scores.items())
