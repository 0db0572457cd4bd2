"""Everything about a study that can be known to be wrong before training, told at once."""

from collections.abc import Iterator

from pipeline.data.tasks import Task
from pipeline.records.store import why_recipe_not_fused
from pipeline.reporting.published import published_mistakes
from pipeline.runs.request import RunRequest
from pipeline.runs.starting import why_not_started_from
from pipeline.runs.training_run import TrainingRun
from pipeline.runs.workspace import Workspace
from pipeline.settings.parts import BOTTLENECKS
from pipeline.settings.recipe import Recipe
from pipeline.settings.study import Study
from pipeline.system.errors import PipelineError, raise_all
from stages.compare.plan import Job, in_order, jobs_of, plan
from stages.fuse import dropped_layers, pair_encoding


def checked(study: Study, workspace: Workspace) -> tuple[Study, dict[str, int]]:
    """The study under the names of its tasks, and the training rows that each task has.

    Raises:
        PipelineError: tasks, rows of data, recipes, or adapters that do not fit what fuses them; every mistake.
    """
    problems: dict[str, None] = {}  # each once, in order: a task's mistake shows in each of its runs
    known: dict[str, Task] = {}
    for name in study.all_tasks:
        try:
            known[name] = workspace.task(name)
        except PipelineError as error:
            problems[str(error)] = None
    problems |= dict.fromkeys(published_mistakes(study))
    study = study.with_task_names(lambda name: known[name].name if name in known else _name_of(name, workspace))
    sizes = {}
    for task in known.values():
        try:
            sizes[task.name] = len(workspace.task_data(task, None, 0).train)
        except PipelineError as error:
            problems[str(error)] = None
    jobs = in_order(jobs_of(study, plan(study, sizes)).values())
    missing = _missing_backbones(study, workspace)
    problems |= dict.fromkeys(missing.values())
    for job in jobs:
        if {part.task for part in job.parts} <= set(sizes) and job.backbone not in missing:
            problems |= dict.fromkeys(_job_problems(job, workspace.on(job.backbone)))
    raise_all(f"study {study.name}", list(problems))
    return study, sizes


def _name_of(alias: str, workspace: Workspace) -> str:
    """A task that only recipes and rows name is not run; it need not be there."""
    try:
        return workspace.task(alias).name
    except PipelineError:
        return alias


def _missing_backbones(study: Study, workspace: Workspace) -> dict[str | None, str]:
    """The rows' own backbones that cannot be used, each with the reason."""
    found: dict[str | None, str] = {}
    for name in study.methods:
        backbone = study.row(name).backbone
        if backbone is not None and backbone not in found:
            try:
                workspace.on(backbone).backbone  # noqa: B018  (opens it)
            except PipelineError as error:
                found[backbone] = f"rows.{name}.backbone: {error}"
    return found


def _job_problems(job: Job, workspace: Workspace) -> Iterator[str]:
    for part in job.parts:
        try:
            workspace.task_data(workspace.task(part.task), part.limit, job.seed)
        except PipelineError as error:
            yield str(error)
    try:
        # Making a run resolves its recipes for their tasks and the backbone, and trains nothing.
        run = TrainingRun(RunRequest(job.kind, job.parts, job.seed), workspace)
        for name, recipe in run.recipes.items():
            if recipe.extra:
                workspace.task_data(run.tasks[name], run.limits[name], job.seed, recipe.extra)
        if job.kind != "multitask":
            yield from _misfits(job, run.recipe, workspace)
    except PipelineError as error:
        yield f"{job.row} on {job.task}: {error}"


def _misfits(job: Job, recipe: Recipe, workspace: Workspace) -> Iterator[str]:
    """Adapters wider than the backbone, and those that a fusion cannot take."""
    width = workspace.backbone.hidden_size
    if job.kind == "adapter" and recipe.adapter.kind in BOTTLENECKS and recipe.bottleneck.width > width:
        yield f"{job.row} on {job.task}: bottleneck {recipe.bottleneck.width} is wider than the backbone ({width})"
    if job.kind == "adapter":
        for need in job.needs:
            source = workspace.task(need.task)
            if why := why_not_started_from(need.parts[0].recipe.resolve(source, "fp32"), source.is_pair, recipe):
                yield f"{job.row} on {job.task}: the adapter of {source.name} (row {need.row}) {why}"
    if job.kind != "fusion":
        return
    encoding = pair_encoding(workspace.task(job.task), job.parts[0].recipe)
    adapters = {}
    for need in job.needs:
        (part,) = need.parts
        task = workspace.task(part.task)
        adapters[task.name] = part.recipe.resolve(task, "fp32")
        if why := why_recipe_not_fused(adapters[task.name], task.is_pair, encoding, recipe.adapter.kind):
            yield f"{job.row} on {job.task}: the adapter of {task.name} (row {need.row}) {why}"
    dropped_layers(recipe, adapters)
