"""The progress of a study, and an estimate of the remaining time from finished runs on the same backbone."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from pipeline.records.run_record import RunRecord
from pipeline.runs.workspace import Workspace
from pipeline.settings.kinds import KINDS, Method
from pipeline.settings.recipe import Recipe
from pipeline.system.errors import PipelineError
from pipeline.system.process import is_main_process
from pipeline.system.streams import notice
from pipeline.training.terms import extra_passes
from stages.compare.jobs import Jobs
from stages.compare.plan import Job

_MOST = 1000
"""Maximum number of runs to learn from; reading more takes long and adds little."""
_HEADS = "frozen", "probe"
"""Kinds that keep what the backbone computed, so that their runs tell nothing of others."""
_FUSION = 1.4
"""Cost of a pass through a fusion of some adapters relative to one adapter, as long as no fusion has run."""
_NEAR_ONE = 0.1
"""Weight of the prior that all kinds and tasks cost the same, beside a run's weight of 1; of hardware, a hundredth."""


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


_Like = tuple[str, str, tuple[Method, bool], frozenset[str]]
"""Runs whose rows cost alike: the hash of their backbone's weights, hardware, kind and whether they build on others,
tasks."""


class Estimate:
    """Estimates the seconds of a job: its rows times the seconds per row in finished runs like it.

    Without any, a fit to all runs on its backbone tells these: they are proportional to what the model reads of a row,
    and to factors of hardware, kind and tasks, which are near 1 until several runs show otherwise. Additional terms of
    the loss count as additional passes. The hardware is that of the latest run.

    Args:
        jobs: all jobs of the study, with the tasks whose rows are measured.
    """

    def __init__(self, workspace: Workspace, jobs: Iterable[Job] = ()) -> None:
        self.workspace = workspace
        self._runs: dict[str, str] = {}
        """The finished runs learned from, with the hash of their backbone's weights."""
        self._hardware = ""
        self._spent = defaultdict[_Like, np.ndarray](lambda: np.zeros((2, 2)))
        """Passes over rows, and seconds, of training and scoring."""
        self._works: dict[Job, np.ndarray] = {}
        self._fitted: dict[_Like, float | None] = {}
        self._characters: dict[str, float] = {}
        """What a model reads of a row, on average; a token has about four."""
        for task in map(workspace.task, {part.task for job in jobs for part in job.parts}):
            rows = workspace.splits.of(task, None, 0).dev.filter(regex="^text_")
            read = sum(rows[name].str.len().mean() for name in rows)
            self._characters[task.name] = min(read, 4 * task.max_length)
        for name in reversed(workspace.ledger.newest(_MOST)):
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
        self._runs[record.run], self._hardware = weights, record.hardware
        scores, cost = [record.scores[task] for task in record.trained_on], record.cost
        trained, work = _work(record.recipe, train, [score.rows for score in scores])
        training = min(trained / cost.examples_per_second, cost.seconds) if cost.examples_per_second else 0.0
        like = weights, record.hardware, (record.kind, bool(record.chosen_from)), frozenset(record.trained_on)
        self._spent[like] += [work, [training, cost.seconds - training]]
        self._fitted.clear()

    def learned_from(self, jobs: Iterable[Job]) -> int:
        """Number of finished runs on the backbones of ``jobs``."""
        backbones = {self._weights(job) for job in jobs}
        return sum(weights in backbones for weights in self._runs.values())

    def total(self, jobs: Iterable[Job], at_once: int = 1) -> Duration:
        """The time of all ``jobs``, with ``at_once`` of them running in parallel."""
        times = [self.seconds(job) for job in jobs]
        return Duration(sum(seconds for seconds in times if seconds is not None) / at_once, times.count(None))

    def seconds(self, job: Job) -> float | None:
        """The time of a job; None if no run on its backbone tells."""
        if KINDS[job.kind].is_ensemble:
            return 0.0
        if job not in self._works:
            self._works[job] = self.work(job)
        tasks = frozenset(part.task for part in job.parts)
        like = self._weights(job), self._hardware, (job.kind, bool(job.needs)), tasks
        if like in self._spent:
            rows, seconds = self._spent[like]
            return float(self._works[job] @ (seconds / np.maximum(rows, 1)))
        if like not in self._fitted:
            self._fitted[like] = self._fit(like)
        rate = self._fitted[like]
        return None if rate is None else rate * float(self._works[job].sum())

    def _fit(self, like: _Like) -> float | None:
        """Seconds per pass over a row, by a ridge regression on other runs on the backbone."""
        same = [each for each in self._spent if each[0] == like[0]]
        others = [each for each in same if (each[2][0] in _HEADS) == (like[2][0] in _HEADS)]
        if not others:
            return None
        every = [*others, like]
        factors = dict.fromkeys(factor for each in every for factor in each[1:])
        usual = np.mean([*self._characters.values()] or [1.0])
        lengths = np.log([np.mean([self._characters.get(task, usual) for task in each[3]]) for each in every])
        lengths += np.log([_FUSION if each[2][0] == "fusion" else 1.0 for each in every])
        spent = np.maximum([self._spent[each].sum(axis=1) for each in others], 1e-9)
        costs = np.log(spent[:, 1] / spent[:, 0])
        has = np.array([[1, *(factor in each[1:] for factor in factors)] for each in every], dtype=float)
        ridge = np.diag([0.0, *(_NEAR_ONE / (100 if isinstance(factor, str) else 1) for factor in factors)])
        fit = np.linalg.solve(has[:-1].T @ has[:-1] + ridge, has[:-1].T @ (costs - lengths[:-1]))
        return float(np.exp(lengths[-1] + has[-1] @ fit))

    def _weights(self, job: Job) -> str:
        return self.workspace.on(job.backbone).backbone.weights_hash

    def work(self, job: Job) -> np.ndarray:
        """Passes over rows of a training job, trained on and scored."""
        workspace, recipe = self.workspace, job.parts[0].recipe
        data = {
            task.name: workspace.splits.of(task, limit, job.seed, own.extra)
            for task, own, limit in job.parts_in(workspace)
        }
        recipe = recipe.model_copy(update=recipe.budget)
        train = {task: len(rows.train) for task, rows in data.items()}
        return _work(recipe, train, [len(rows.dev) for rows in data.values()])[1]


def _work(recipe: Recipe, train: Mapping[str, int], dev: list[int]) -> tuple[float, np.ndarray]:
    """Rows trained on, over all epochs; passes over them and over rows scored. A backward pass counts as two."""
    passes = {task: recipe.steps_over(rows) for task, rows in train.items()}
    batches = recipe.joint_steps(passes) * (len(train) if recipe.joint.mixing == "simultaneous" else 1)
    epochs = recipe.planned_epochs(passes)
    scores_start = recipe.score_start or not epochs
    scorings = sum(recipe.scored(epoch, epochs) for epoch in range(1, epochs + 1)) + bool(scores_start)
    # Batches are full but for a pass's last one.
    share = sum(train.values()) / sum(passes.values())
    trained = batches * share * epochs
    return trained, np.array([trained * (3 + extra_passes(recipe)), scorings * sum(dev)])


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

    def wait(self, run: str, title: str) -> None:
        """Say that the study waits for a run."""
        if is_main_process():
            notice(f"waiting for run {run} ({title}): another command is training it")

    @staticmethod
    def _scores(job: Job, record: RunRecord) -> str:
        scores = {part.task: record.score(part.task) for part in job.parts}
        return ", ".join(f"{task} dev {score.metric} {score.dev:.4f}" for task, score in scores.items())
