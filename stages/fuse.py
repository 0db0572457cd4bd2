"""Stage two: knowledge composition, fusion layers over the adapters of several tasks for one target."""

from collections.abc import Collection, Sequence

from pipeline.data.tasks import BEST
from pipeline.runs.sources import Fusion, SourceName, best_count, parse_sources
from pipeline.runs.training_run import TrainingRun
from pipeline.runs.workspace import RunRequest, Workspace
from pipeline.settings.parts import EXPERTS
from pipeline.settings.recipe import Recipe
from pipeline.system.errors import PipelineError
from pipeline.system.streams import notice
from pipeline.training.devices import on_main_process
from stages.extract import Extraction, Trained, note_ignored, trained


def fuse(
    target: str,
    recipe: Recipe,
    workspace: Workspace,
    *,
    seed: int,
    limit: int | None = None,
    target_limit: int | None = None,
    sources: str | None = None,
    experts: int = EXPERTS,
    force: bool = False,
    probed: bool = False,
    given: Collection[str] = (),
) -> Trained:
    """Train fusion layers for ``target`` and put them into the store.

    Without a limit, stage two reads the rows stage one read: the limit of the target's own adapter.

    Args:
        limit: training rows of each task; None: all.
        target_limit: training rows of the target, where they are others than ``limit``.
        sources: tasks as :func:`pipeline.runs.sources.parse_sources` reads them. An adapter of theirs that the store
            lacks is trained first, apart from rows with a text of the target's dev or test, as is the target's own if
            the recipe takes it. ``best:N``: of the adapters that fit the N that
            :meth:`pipeline.runs.initial.Chooser.best_sources` chooses (``best_sources`` of a recipe). None: all that
            fit. In both cases none is trained. Experts are warm-started from one of these adapters, as ``extract`` is.
        experts: the number of adapters in a fusion of experts. They are trained first, if they are missing.
        force: train the fusion even if the ledger has this run; adapters that are there stay.
        probed: as for :func:`stages.extract.extract`.
        given: the keys of the recipe that the user set; a note names those without effect.
    """
    count = None if sources is None else best_count(sources)
    if count is not None:
        if recipe.form.of_target:
            raise PipelineError(
                f"--sources {sources}: experts start from one adapter: name tasks, leave it out, or use --fusion gated"
            )
        recipe = recipe.changed({"best_sources": count})
    fusion, names = Fusion(workspace.task(target), recipe, workspace), None
    named = () if sources is None or count is not None else parse_sources(sources, workspace)
    tasks = [*(workspace.task(name.task) for name in named), *([fusion.task] if recipe.form.of_target else [])]
    adapters = [(fusion.adapter_recipe(task), task) for task in tasks]
    what = f"fusion '{recipe.fusion.form}' for task '{fusion.task.name}'" + (" or on its adapters" if adapters else "")
    note_ignored(given, what, [(recipe, fusion.task), *adapters])
    if named:
        names = fusion.named(named)
        if unused := [name.task for name in named if name not in names]:
            notice(f"note: fusion '{recipe.fusion.form}' trains its own adapter of {unused[0]}: --sources ignores it")
        _train_missing(names, fusion, seed, limit, target_limit)
    rows = limit if target_limit is None else target_limit
    if recipe.form.of_target:
        start, own_recipe = BEST if names is None else ",".join(map(str, names)), fusion.adapter_recipe(fusion.task)
        chosen = Extraction(fusion.task, own_recipe, workspace, seed, rows, start).train(experts)
        own = None
    else:
        chosen = fusion.choose(names, seed)
        own = next((a.manifest for a in chosen if a.manifest.task == fusion.task.name), None)
    if own is not None and rows is None:
        rows = own.limit
    run = TrainingRun(fusion.request(chosen, seed=seed, limit=rows), workspace)
    if own is not None and own.train_rows != run.data[own.task].fingerprint["train"]:
        notice(
            f"note: stage two should read the rows of stage one, but adapter {own.run} of {own.task} was trained on"
            f" others (--seed {own.seed}, --limit {own.limit or 'all'}; compare --data and --drop-overlap too)"
        )
    return trained(run, force, probed)


def _train_missing(
    names: Sequence[SourceName], fusion: Fusion, seed: int, limit: int | None, target_limit: int | None
) -> None:
    """Train the adapters of ``names`` that the store lacks, one by one; each is kept as soon as it is finished.

    All that can be known to be wrong is raised before the first one starts.
    """
    workspace, missing = fusion.workspace, on_main_process(lambda: fusion.missing(names))
    if missing:
        workspace = workspace.apart_from([fusion.task.name])
    limits = dict.fromkeys([*missing, fusion.task.name], limit)
    if target_limit is not None:
        limits[fusion.task.name] = target_limit
    requests = {
        task.name: RunRequest.single("adapter", task, fusion.adapter_recipe(task), seed, limits[task.name])
        for task in map(workspace.task, missing)
    }
    runs = {name: TrainingRun(request, workspace) for name, request in requests.items()}
    fusion.check(names, {name: run.recipe for name, run in runs.items()}, seed)
    rows = {name: len(run.data[name].train) for name, run in runs.items()}
    workspace.splits.of(fusion.task, limits[fusion.task.name], seed)  # read here, not after hours
    if missing:
        listed = ", ".join(f"{name} ({rows[name]:,} rows{f'; {why}' if why else ''})" for name, why in missing.items())
        notice(f"trained first, since {workspace.store_root} lacks them: adapters of {listed}")
    for name, run in runs.items():
        record = run.get()
        notice(f"adapter of {name}: dev {record.metric} {record.dev:.4f}, in {record.artifact}")
