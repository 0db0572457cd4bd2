"""Stage one: knowledge extraction, an adapter for a task on the frozen backbone."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from pipeline.data.tasks import BEST, Task
from pipeline.records.run_record import RunRecord
from pipeline.records.store import Artifact
from pipeline.runs.outcome import Made, get_or_train
from pipeline.runs.scoring import MOST_ROWS, ProbeScore, probe_score
from pipeline.runs.sources import starting_adapters, why_not_started_from
from pipeline.runs.training_run import TrainingRun
from pipeline.runs.workspace import RunRequest, Workspace
from pipeline.settings.recipe import Recipe
from pipeline.settings.resolve import keys_without_effect
from pipeline.system.errors import PipelineError
from pipeline.system.streams import notice
from pipeline.training.devices import make_accelerator


@dataclass(frozen=True)
class Trained(Made[RunRecord]):
    """What a command that trains tells of its run."""

    probe: ProbeScore | None
    """The score of regression on frozen vectors for the same rows, which the run should beat; None if it was not asked
    for, if the run had already finished, or if so many rows would take minutes."""


def extract(
    task: str,
    recipe: Recipe,
    workspace: Workspace,
    *,
    seed: int,
    limit: int | None = None,
    start_from: str | None = None,
    without_rows_of: Sequence[str] = (),
    soup: int = 1,
    force: bool = False,
    probed: bool = False,
    given: Collection[str] = (),
) -> Trained:
    """Train an adapter for ``task`` and put it into the store; at once the old result if it was trained before.

    Args:
        start_from: the other task's adapter that it starts as; with several, or "best", the one that a linear probe
            finds most useful, if any; or the task itself, whose last adapter and head are trained further
            (:func:`pipeline.runs.sources.starting_adapters`).
        without_rows_of: targets that the adapter is to help: training rows whose text stands in their dev or test are
            left out.
        soup: so many adapters are trained that start alike and differ in the order of batches and in dropout; the
            result is the mean of their weights and heads, one adapter (Wortsman et al. 2022).
        probed: score regression on frozen vectors beside a new run, in seconds.
        given: the keys of the recipe that the user set; a note names those without effect.

    Raises:
        PipelineError: a soup of adapters that cannot be merged: other kinds than bottlenecks, or with LayerNorms.
    """
    if without_rows_of:
        workspace = workspace.apart_from(without_rows_of)
    wanted = Extraction(workspace.task(task), recipe, workspace, seed, limit, start_from)
    wanted.note_ignored(given)
    run = wanted.runs()[0] if soup == 1 else wanted.soup(soup, force)
    return trained(run, force, probed)


@dataclass(frozen=True)
class Extraction:
    """An adapter for ``task`` to be trained, once or several times from the same start."""

    task: Task
    recipe: Recipe
    workspace: Workspace
    seed: int
    limit: int | None
    start_from: str | None

    def runs(self, count: int = 1) -> list[TrainingRun]:
        """Runs of the adapter that differ only in the order of batches and in dropout."""
        task, text, starts = self.task, self.start_from, tuple[Artifact, ...]()
        if text is not None:
            starts = starting_adapters(text, task, self.recipe, self.workspace, self.seed, self.limit)
        is_named = text != BEST and len(starts) == 1  # whoever names one adapter means it, whatever a probe says
        recipes = [self.recipe.changed({"reshuffle": number} if number else {}) for number in range(count)]
        chosen = {"adapters": starts, "in_turn": is_named, "tested": False}
        requests = [RunRequest.single("adapter", task, each, self.seed, self.limit, **chosen) for each in recipes]
        return [TrainingRun(request, self.workspace) for request in requests]

    def train(self, count: int, force: bool = False) -> tuple[Artifact, ...]:
        """Train ``count`` adapters (:meth:`runs`)."""
        return tuple(self.workspace.adapter_of(run.get(force)) for run in self.runs(count))

    def soup(self, count: int, force: bool) -> TrainingRun:
        """Train ``count`` adapters; returns the run that takes the mean of their weights and heads."""
        resolved = self.workspace.resolve(self.recipe, self.task)
        if why := why_not_started_from(resolved, self.task.is_pair, resolved):
            raise PipelineError(f"--soup merges adapters, and one of this recipe {why}")
        mean, adapters = self.recipe.changed({"merge": "mean"}), self.train(count, force)
        request = RunRequest.single("merge", self.task, mean, self.seed, self.limit, adapters=adapters)
        return TrainingRun(request, self.workspace)

    def note_ignored(self, given: Collection[str]) -> None:
        kind = self.recipe.adapter.kind
        note_ignored(given, f"an adapter of kind '{kind}' for task '{self.task.name}'", [(self.recipe, self.task)])


def note_ignored(given: Collection[str], what: str, trained: Sequence[tuple[Recipe, Task]]) -> None:
    """Say on stderr which of the keys ``given`` affect nothing that the command may train."""
    ignored = set(given).intersection(*(keys_without_effect(recipe, task) for recipe, task in trained))
    if ignored:
        flags = ", ".join(sorted(f"--{key.replace('_', '-')}" for key in ignored))
        notice(f"note: {flags}: no effect on {what}")


def trained(run: TrainingRun, force: bool, probed: bool) -> Trained:
    """Find or train ``run``, with its :attr:`Trained.probe` if that is asked for.

    Raises:
        PipelineError: a file of a run that had already finished was changed.
    """
    made = get_or_train(run, force)
    record, recipe, workspace = made.record, made.record.recipe, run.workspace
    if not made.is_new:
        workspace.adapter_of(record).verify()
    if not (probed and made.is_new) or record.own.train_rows > MOST_ROWS or recipe.permute_labels:
        return Trained(record, made.is_new, None)
    recipe = workspace.resolve(recipe.as_probe, run.task)
    data, accelerator = run.data[run.task.name], make_accelerator(recipe.precision)
    return Trained(record, True, probe_score(run.task, data, recipe, workspace.backbone_for(recipe), accelerator))
