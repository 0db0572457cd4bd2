"""How long a study will take, from the runs that are finished: of the same method, on the same backbone."""

from collections.abc import Iterable
from dataclasses import dataclass

from pipeline.records.ledger import Kind, RunRecord
from pipeline.runs.workspace import Workspace
from pipeline.settings.recipe import Recipe
from pipeline.system.errors import PipelineError
from pipeline.training.terms import extra_passes
from stages.compare.plan import Job


@dataclass(frozen=True)
class Duration:
    """Seconds of the jobs that can be told, and how many cannot."""

    seconds: float
    unknown: int = 0

    def __str__(self) -> str:
        if self.unknown and not self.seconds:
            return "unknown time"
        minutes, seconds = divmod(round(self.seconds), 60)
        hours, minutes = divmod(minutes, 60)
        about = f"{hours} h {minutes:02d} min" if hours else f"{minutes}:{seconds:02d} min"
        return f"{'more than' if self.unknown else 'about'} {about}"


@dataclass(frozen=True)
class _Work:
    """What a run does: rows it trains on, over all epochs, and rows it scores."""

    trained: float
    scored: float
    passes: float
    """What a row of training costs: a pass forward counts one, a pass backward two."""

    @property
    def training(self) -> float:
        return self.trained * self.passes


@dataclass
class _Spent:
    """What runs did, and the seconds it took."""

    trained: float = 0.0
    scored: float = 0.0
    train_seconds: float = 0.0
    score_seconds: float = 0.0

    def add(self, record: RunRecord) -> None:
        done, speed = _work(record), record.cost.examples_per_second
        training = min(done.trained / speed, record.cost.seconds) if speed else 0.0
        self.trained += done.training
        self.scored += done.scored
        self.train_seconds += training
        self.score_seconds += record.cost.seconds - training

    def seconds_of(self, work: _Work) -> float:
        training = work.training * self.train_seconds / max(self.trained, 1)
        return training + work.scored * self.score_seconds / max(self.scored, 1)


class Estimate:
    """Seconds of a job: its rows times the seconds a row took in runs of its method, on its task if there is one.

    A row takes longer where the loss has further terms.
    """

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self._runs: set[str] = set()
        self._spent: dict[tuple[Kind, frozenset[str] | None], _Spent] = {}
        """By method and tasks; by method alone under None."""
        self._works: dict[Job, _Work] = {}
        for name in workspace.ledger.names():
            try:
                record = workspace.ledger.find(name)
            except PipelineError:
                continue  # a damaged record is told by the command that needs it
            if record is not None:
                self.learn(record)

    @property
    def known(self) -> int:
        """Runs it knows."""
        return len(self._runs)

    def learn(self, record: RunRecord) -> None:
        """Count a finished run in."""
        here = record.identity.get("backbone", {}).get("weights") == self.workspace.backbone.weights_hash
        if here and record.run not in self._runs:
            self._runs.add(record.run)
            for tasks in (None, frozenset(record.trained_on)):
                self._spent.setdefault((record.kind, tasks), _Spent()).add(record)

    def total(self, jobs: Iterable[Job]) -> Duration:
        """The time of all ``jobs``, one after the other."""
        found = [self.seconds(job) for job in jobs]
        return Duration(sum(seconds for seconds in found if seconds is not None), found.count(None))

    def seconds(self, job: Job) -> float | None:
        """The time of one job, or None where no run of its method has finished on this backbone."""
        tasks = frozenset(part.task for part in job.parts)
        spent = self._spent.get((job.kind, tasks)) or self._spent.get((job.kind, None))
        if spent is None:
            return None
        if job not in self._works:
            self._works[job] = self._work_of(job)
        return spent.seconds_of(self._works[job])

    def _work_of(self, job: Job) -> _Work:
        data = [
            self.workspace.task_data(self.workspace.task(p.task), p.limit, job.seed, p.recipe.extra) for p in job.parts
        ]
        recipe = job.parts[0].recipe
        recipe = recipe.model_copy(update={"epochs": recipe.epochs or recipe.usual_epochs})
        return _amount(recipe, [len(rows.train) for rows in data], [len(rows.dev) for rows in data])


def _work(record: RunRecord) -> _Work:
    trained = [record.scores[task] for task in record.trained_on]
    return _amount(record.recipe, [score.train_rows for score in trained], [score.rows for score in trained])


def _amount(recipe: Recipe, train: list[int], dev: list[int]) -> _Work:
    steps = recipe.joint_steps([recipe.steps_over(rows) for rows in train])
    batches = steps * (len(train) if recipe.joint.mixing == "simultaneous" else 1)
    epochs = recipe.epochs_of(steps)
    scorings = sum(recipe.scored(epoch, epochs) for epoch in range(1, epochs + 1)) + bool(recipe.score_start)
    # Batches are full but for a pass's last one.
    share = sum(train) / sum(recipe.steps_over(rows) for rows in train)
    return _Work(trained=batches * share * epochs, scored=scorings * sum(dev), passes=3 + extra_passes(recipe))
