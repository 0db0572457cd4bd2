"""Stage one: knowledge extraction, an adapter for a task on the frozen backbone."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from pipeline.data.tasks import BEST, Task
from pipeline.records.run_record import RunRecord
from pipeline.runs.probing import MOST_ROWS, ProbeScore, probe_score
from pipeline.runs.request import Made, RunRequest, get_or_train
from pipeline.runs.sources import starting_adapters, why_not_started_from
from pipeline.runs.training_run import TrainingRun
from pipeline.runs.workspace import Workspace
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
    own = workspace.task(task)
    note_ignored(given, f"an adapter of kind '{recipe.adapter.kind}' for task '{own.name}'", [(recipe, own)])
    if soup > 1:
        resolved = workspace.resolve(recipe, own)
        if why := why_not_started_from(resolved, own.is_pair, resolved):
            raise PipelineError(f"--soup merges adapters, and one of this recipe {why}")
    made = experts(own, recipe, workspace, seed=seed, limit=limit, start_from=start_from, count=soup, force=force)
    if soup == 1:
        return trained_as(made[0], own, workspace, probed)
    adapters = tuple(workspace.adapter_of(each.record) for each in made)
    request = RunRequest.single("merge", own, recipe.changed({"merge": "mean"}), seed, limit, adapters=adapters)
    return trained_as(get_or_train(TrainingRun(request, workspace), force), own, workspace, probed)


def experts(
    task: Task,
    recipe: Recipe,
    workspace: Workspace,
    *,
    seed: int,
    limit: int | None,
    start_from: str | None,
    count: int,
    force: bool = False,
) -> list[Made[RunRecord]]:
    """Train ``count`` adapters for ``task`` that differ only in the order of batches and in dropout."""
    starts = () if start_from is None else starting_adapters(start_from, task, recipe, workspace, seed, limit)
    is_named = start_from != BEST and len(starts) == 1  # whoever names one adapter means it, whatever a probe says
    made = []
    for number in range(count):
        again = recipe.changed({"reshuffle": number} if number else {})
        request = RunRequest.single(
            "adapter", task, again, seed, limit, adapters=starts, in_turn=is_named, tested=False
        )
        made.append(get_or_train(TrainingRun(request, workspace), force))
    return made


def note_ignored(given: Collection[str], what: str, trained: Sequence[tuple[Recipe, Task]]) -> None:
    """Say on stderr which of the keys ``given`` change nothing of all that a command may train."""
    ignored = set(given).intersection(*(keys_without_effect(recipe, task) for recipe, task in trained))
    if ignored:
        flags = ", ".join(sorted(f"--{key.replace('_', '-')}" for key in ignored))
        notice(f"note: {flags}: no effect on {what}")


def trained_as(made: Made[RunRecord], task: Task, workspace: Workspace, probed: bool) -> Trained:
    """``made``, whose files are whole, with its :attr:`Trained.probe` if that is asked for.

    Raises:
        PipelineError: a file of a run that had already finished was changed.
    """
    record, trained = made.record, made.record.recipe
    if not made.is_new:
        workspace.adapter_of(record).verify()
    if not (probed and made.is_new) or record.own.train_rows > MOST_ROWS or trained.permute_labels:
        return Trained(record, made.is_new, None)
    recipe = workspace.resolve(trained.as_probe, task)
    data = workspace.splits.of(task, record.own.limit, record.seed, trained.extra)
    backbone, accelerator = workspace.backbone_for(recipe), make_accelerator(recipe.precision)
    return Trained(record, True, probe_score(task, data, recipe, backbone, accelerator))
