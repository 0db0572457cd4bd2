"""How long a study will take, from the runs that are finished: of the same method, on the same backbone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pipeline.errors import PipelineError
from pipeline.ledger import RunRecord
from pipeline.recipe import Recipe
from stages.plan import Job
from stages.workspace import Workspace


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


class Estimate:
    """Seconds of a job: its rows times the seconds a row took in runs of its method, on its task if there is one.

    A row takes longer where SMART or the proximal point trains on it.
    """

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self._records: dict[str, RunRecord] = {}
        for file in sorted(workspace.ledger.root.glob("*/run.json")):
            try:
                record = workspace.ledger.find(file.parent.name)
            except PipelineError:
                continue  # a damaged record is told by the command that needs it
            if record is not None:
                self.learn(record)

    @property
    def known(self) -> int:
        """Runs it knows."""
        return len(self._records)

    def learn(self, record: RunRecord) -> None:
        """Count a finished run in."""
        if record.identity.get("backbone", {}).get("weights") == self.workspace.backbone.weights_hash:
            self._records[record.run] = record

    def total(self, jobs: Iterable[Job]) -> Duration:
        """The time of all ``jobs``, one after the other."""
        found = [self.seconds(job) for job in jobs]
        return Duration(sum(seconds for seconds in found if seconds is not None), found.count(None))

    def seconds(self, job: Job) -> float | None:
        """The time of one job, or None where no run of its method has finished on this backbone."""
        alike = [record for record in self._records.values() if record.kind == job.kind]
        tasks = {part.task for part in job.parts}
        alike = [record for record in alike if {record.task, *_joint(record)} == tasks] or alike
        if not alike:
            return None
        work = self._work_of(job)
        trained, scored, train_seconds, score_seconds = 0.0, 0.0, 0.0, 0.0
        for record in alike:
            done, speed = _work(record), record.cost.examples_per_second
            spent = min(done.trained / speed, record.cost.seconds) if speed else 0.0
            trained, scored = trained + done.training, scored + done.scored
            train_seconds, score_seconds = train_seconds + spent, score_seconds + record.cost.seconds - spent
        return work.training * train_seconds / max(trained, 1) + work.scored * score_seconds / max(scored, 1)

    def _work_of(self, job: Job) -> _Work:
        data = [
            self.workspace.task_data(self.workspace.task(p.task), p.limit, job.seed, p.recipe.extra) for p in job.parts
        ]
        recipe = job.parts[0].recipe
        recipe = recipe.model_copy(update={"epochs": recipe.epochs or recipe.usual_epochs})
        return _amount(recipe, [len(rows.train) for rows in data], [len(rows.dev) for rows in data])


def _work(record: RunRecord) -> _Work:
    joint = _joint(record)
    train = [record.rows["train"], *(record.others[task].train_rows or 0 for task in joint)]
    return _amount(record.recipe, train, [record.rows["dev"], *(record.others[task].rows for task in joint)])


def _joint(record: RunRecord) -> list[str]:
    """The other tasks that a run trained on."""
    return [task for task, other in record.others.items() if other.train_rows is not None]


def _amount(recipe: Recipe, train: list[int], dev: list[int]) -> _Work:
    steps = recipe.joint_steps([recipe.steps_over(rows) for rows in train])
    batches = steps * (len(train) if recipe.mixing == "simultaneous" else 1)
    epochs = recipe.epochs_of(steps)
    scorings = sum(recipe.scored(epoch, epochs) for epoch in range(1, epochs + 1)) + bool(recipe.score_start)
    # Batches are full but for a pass's last one.
    share = sum(train) / sum(recipe.steps_over(rows) for rows in train)
    return _Work(trained=batches * share * epochs, scored=scorings * sum(dev), passes=_passes(recipe))


def _passes(recipe: Recipe) -> float:
    """SMART finds its direction by a pass forward and one back, and adds one of each; the teacher makes one forward."""
    return 3 + (5 if recipe.smart else 0) + (1 if recipe.bregman else 0)
