"""Find every mistake in a study before anything is trained, and report all of them at once."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from pipeline.data.tasks import Task
from pipeline.methods.registry import FORMS, METHODS
from pipeline.records.studies import Entry
from pipeline.reporting.published import published_mistakes
from pipeline.runs.build import same_head, why_not_continued
from pipeline.runs.sources import Fusion, dropped_layers, why_not_started_from, why_recipe_not_fused
from pipeline.runs.training_run import TrainingRun
from pipeline.runs.workspace import RunRequest, Workspace
from pipeline.settings.kinds import KINDS
from pipeline.settings.parse_study import with_task_names
from pipeline.settings.recipe import Recipe
from pipeline.settings.study import Study
from pipeline.system.errors import PipelineError, noted, raise_all
from stages.compare.plan import Job, in_order, jobs_of, plan
from stages.pretrain import tasks_read


def checked(study: Study, workspace: Workspace) -> tuple[Study, dict[str, int]]:
    """The study with task names instead of aliases, and the number of training rows by task.

    Raises:
        PipelineError: every mistake in tasks, data, recipes, and adapters that do not fit the row that uses them.
    """
    problems: list[str] = []
    tasks: list[Task] = []
    for name in study.all_tasks:
        with noted(problems):
            tasks.append(workspace.task(name))
    unknown = tuple(problems)
    problems += published_mistakes(study)
    study = with_task_names(study, lambda name: _name_of(name, workspace))
    problems += _read_before(study, workspace)
    sizes: dict[str, int] = {}
    for task in tasks:
        with noted(problems):
            workspace.splits.of(task, None, 0)  # raises if the rows cannot be split
            sizes[task.name] = workspace.splits.rows_to_draw(task)
    cells = jobs_of(study, plan(study, sizes))
    jobs = in_order(cells.values())
    problems += _read_although_apart(study, cells, workspace)
    is_usable: dict[str | None, bool] = {None: True}
    for name in study.methods:
        if study.row(name).own and not all(study.fuses_own(name, t) for t in study.targets_of(name)):
            problems.append(
                f"rows.{name}.own: a gated fusion trains a new adapter of its own: leave own out, or write"
                ' own_adapter = "trained" or "frozen", or another fusion, into the recipe'
            )
        backbone = study.row(name).backbone
        if backbone not in is_usable:
            is_usable[backbone] = False
            with noted(problems, f"rows.{name}.backbone: "):
                workspace.on(backbone).backbone  # noqa: B018  (opens it)
                is_usable[backbone] = True
    for job in jobs:
        if {part.task for part in job.parts} <= set(sizes) and is_usable[job.backbone]:
            _check_job(job, workspace.on(job.backbone), problems)
    # A mistake in a task appears in all its runs, and an unknown task in all runs that use it: report it once.
    own = [problem for problem in problems if problem in unknown or not problem.endswith(unknown)]
    raise_all(f"study {study.name}", list(dict.fromkeys(own)))
    return study, sizes


def shared_texts(study: Study, cells: Mapping[Entry, Job], workspace: Workspace) -> Iterator[str]:
    """A sentence for every target and task that share text, if a model behind some row of the target reads the task."""
    users = defaultdict[str, defaultdict[str, dict[str, None]]](lambda: defaultdict(dict))
    for cell, job in cells.items():
        if cell.seed != study.seeds[0]:  # every seed reads the same tasks
            continue
        title = study.title(cell.line.row)
        for part in (part for each in in_order([job]) for part in each.parts):
            for task in (part.task, *(source.task for source in part.recipe.extra)):
                users[cell.target][workspace.task(task).name][title] = None
    for name in study.targets:
        target = workspace.task(name)
        for source, rows in users[name].items():
            if shared := target.text_shared_with(workspace.task(source)):
                use = f"rows that use {source} for {target.name}: {'; '.join(rows)}"
                yield f"{target.name} and {source} share text ({shared}); {use}."


def _read_although_apart(study: Study, cells: Mapping[Entry, Job], workspace: Workspace) -> Iterator[str]:
    """Mistakes: rows that read a task, by name or as extra rows, although ``apart`` keeps it from their target."""
    for cell, job in cells.items():
        name, target = cell.line.row, cell.target
        parts = [part for each in in_order([job]) for part in each.parts] if target in study.apart else []
        extra = {_name_of(source.task, workspace) for part in parts for source in part.recipe.extra}
        read = {part.task for part in parts} | extra
        for task in sorted(read & {*study.apart.get(target, ())}):
            yield (
                f"rows.{name}: takes {task} for {target}, which apart.{target} forbids: leave {task} out, or {target}"
                f" out of rows.{name}.targets"
            )


def _read_before(study: Study, workspace: Workspace) -> Iterator[str]:
    """Mistakes: backbones that were pretrained further on training texts that the study holds out to score."""
    held_out = [task for task in study.targets if study.scoring.of(task) == "held-out"]
    for backbone in dict.fromkeys((workspace.backbone_name, *(study.row(name).backbone for name in study.methods))):
        read = tasks_read(Path(backbone)) if backbone is not None else set[str]()
        if seen := [task for task in held_out if task in read]:
            yield (
                f"backbone '{backbone}' was pretrained further on the training texts of {', '.join(seen)}, of which"
                " this study holds out rows to score: give these tasks another scoring (half or test)"
            )


def _name_of(alias: str, workspace: Workspace) -> str:
    with suppress(PipelineError):  # a task that only recipes or rows name is never run, and may be missing
        return workspace.task(alias).name
    return alias


def _check_job(job: Job, workspace: Workspace, problems: list[str]) -> None:
    if KINDS[job.kind].is_ensemble:  # its members are checked
        return
    parts = job.parts_in(workspace)
    for part in parts:
        with noted(problems):
            workspace.splits.of(part.task, part.limit, job.seed)
    where = f"{job.row} on {job.task}: "
    with noted(problems, where):
        # Making a run resolves its recipes for their tasks and the backbone, and trains nothing.
        run = TrainingRun(RunRequest(job.kind, parts, job.seed), workspace)
        for resolved in run.parts.values():
            if resolved.recipe.extra:
                workspace.splits.of(resolved.task, resolved.limit, job.seed, resolved.recipe.extra)
        problems.extend(f"{where}{misfit}" for misfit in _misfits(job, run))


def _misfits(job: Job, run: TrainingRun) -> Iterator[str]:
    """Sizes larger than the backbone's width, and reasons why the run cannot build on the runs that it needs."""
    recipe, width, takes = run.recipe, run.backbone.hidden_size, KINDS[job.kind].takes
    if recipe.adds_adapters and (misfit := METHODS[recipe.adapter.kind].misfit(recipe, width)):
        yield misfit
    if takes == "fusion" and (misfit := FORMS[recipe.fusion.form].misfit(recipe, width)):
        yield misfit
    recipes = dict[str, Recipe]()
    for need in job.needs:
        task, source = _trained_by(need, run.workspace)
        recipes[task.name] = source
        match takes:
            case "head" if not same_head(source, recipe):
                yield (
                    f"it cannot start with the head of row {need.row}: give both the same head, encoding and pooling,"
                    " and no second_encoder"
                )
            case "weights":
                if why := why_not_continued(source, (part.recipe for part in run.parts.values())):
                    yield f"the model of {task.name} (row {need.row}) {why}"
            case "adapter" | "fusion":
                if why := _why_not_taken(source, task, job, run):
                    yield f"the adapter of {task.name} (row {need.row}) {why}"
    if takes == "fusion":
        dropped_layers(recipe, recipes)  # raises if they differ


_OTHER_HEAD = "has another head, encoding or pooling"


def _why_not_taken(source: Recipe, task: Task, job: Job, run: TrainingRun) -> str | None:
    """Why the job cannot fuse, merge or start from an adapter of ``task`` with recipe ``source``; None if it can."""
    recipe, kind = run.recipe, KINDS[job.kind]
    if kind.takes == "fusion":
        encoding = Fusion(run.task, job.parts[0].recipe, run.workspace).encoding
        why = why_recipe_not_fused(source, task.is_pair, encoding, recipe.adapter.kind)
        return _OTHER_HEAD if why is None and recipe.is_averaged and not same_head(source, recipe) else why
    if (why := why_not_started_from(source, task.is_pair, recipe)) or not kind.combines:
        return why
    if source.adapter.drop_layers != recipe.adapter.drop_layers:
        return "leaves out other layers (--drop-layers)"
    if task.name == job.task and not same_head(source, recipe):
        return _OTHER_HEAD
    return None


def _trained_by(job: Job, workspace: Workspace) -> tuple[Task, Recipe]:
    """The only task of ``job``, and its resolved recipe."""
    ((task, recipe, _),) = job.parts_in(workspace)
    return task, workspace.resolve(recipe, task)
