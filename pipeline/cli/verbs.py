"""The verbs. No logic here: parse, call a stage, print its result."""

from __future__ import annotations

import json as json_module
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import cyclopts
from cyclopts import App, Parameter

from pipeline import __version__
from pipeline.cli.options import FileOrFolder, Flag, Places, Precision, Running, Training, check_text
from pipeline.data.tasks import built_in_tasks, find_task
from pipeline.settings.recipe import AdapterKind
from pipeline.system.errors import PipelineError, refusal
from pipeline.system.streams import print_error

if TYPE_CHECKING:
    from pipeline.records.ledger import RunRecord

app = App(
    name="python -m pipeline",
    help="Train an adapter per task on one frozen BERT, fuse them for a target task, and compare with fine-tuning.",
    version=__version__,
    help_format="plaintext",
    suppress_keyboard_interrupt=False,
)


@app.command
def extract(
    *,
    task: str,
    adapter: AdapterKind | None = None,
    bottleneck: int | None = None,
    drop_layers: str | None = None,
    train_layernorm: Flag = False,
    start_from: str | None = None,
    seed: int = 0,
    force: Flag = False,
    places: Places = Places(),
    training: Training = Training(),
    running: Running = Running(),
) -> None:
    """Stage one: train an adapter for a task on the frozen backbone.

    Parameters
    ----------
    task
        A built-in task (see tasks list), <data>/TASK/task.toml, or a task file.
    adapter
        houlsby: bottlenecks after attention and FFN; pfeiffer: after the FFN only; pal: a narrow attention layer beside
        each layer; prefix: vectors before its input; prefix-tuning: keys and values before its own (houlsby). Only
        bottlenecks can be fused.
    bottleneck
        Adapter width (64).
    drop_layers
        Layers without an adapter, such as 0-4 or 0,1,3: faster, from the bottom up at little cost (none).
    train_layernorm
        Train the LayerNorms too; such an adapter cannot be fused.
    start_from
        Adapters of other tasks, such as sick, or sick,quora@RUN, or best for all in the store: it begins as the one off
        which this task is best read, if one is shown to help; for tasks with few rows (fresh).
    seed
        Fixes initial weights, sample, order and dropout.
    force
        Train even if the ledger has this run.
    """
    from stages.extract import extract as run

    recipe = training.parse(
        "adapter",
        adapter=adapter,
        bottleneck=bottleneck,
        drop_layers=drop_layers,
        train_layernorm=train_layernorm or None,
    )
    workspace = places.workspace(**running.settings())
    record = run(task, recipe, workspace, seed=seed, limit=running.limit, start_from=start_from, force=force)
    _print_result(record, running.json)


@app.command
def fuse(
    *,
    target: str,
    adapters: str | None = None,
    adapter: Literal["houlsby", "pfeiffer"] | None = None,
    drop_layers: str | None = None,
    fusion: Literal["anchored", "standard"] | None = None,
    fusion_impl: Literal["fast", "stock"] | None = None,
    seed: int = 0,
    force: Flag = False,
    places: Places = Places(),
    training: Training = Training(),
    running: Running = Running(),
) -> None:
    """Stage two: train fusion layers over the adapters of several tasks for one target.

    Parameters
    ----------
    target
        The task the fusion is for.
    adapters
        Sources, such as sst,quora,sts or sst@RUN for one of several (every adapter in the store that fits).
    adapter
        Kind of the adapters to fuse (houlsby).
    drop_layers
        Layers without fusion, such as 0-4 or 0,1,3 (those that the adapters leave out).
    fusion
        anchored: begins as the best single adapter, with few weights; standard: as Pfeiffer et al. 2021 (anchored).
    fusion_impl
        How fusion is computed: fast, or stock for AdapterHub's own code, which it equals to rounding (fast).
    seed
        Fixes initial weights, sample, order and dropout.
    force
        Train even if the ledger has this run.
    """
    from stages.fuse import fuse as run

    recipe = training.parse("fusion", adapter=adapter, drop_layers=drop_layers, fusion=fusion, fusion_impl=fusion_impl)
    workspace = places.workspace(**running.settings())
    record = run(target, recipe, workspace, seed=seed, limit=running.limit, adapters=adapters, force=force)
    _print_result(record, running.json)


@app.command
def prune(
    *,
    target: str,
    keep: int,
    using: str = "fusion",
    force: Flag = False,
    json: Flag = False,
    places: Places = Places(),
) -> None:
    """Leave out the adapters of a trained fusion that get least attention; nothing is trained anew.

    Parameters
    ----------
    target
        The task the fusion is for.
    keep
        How many adapters stay, those with most attention on dev.
    using
        The run of a fusion; fusion is the best one trained for the target.
    force
        Do it even if the ledger has this run.
    json
        Print the result as one JSON object on the last line.
    """
    from stages.prune import prune as run

    _print_result(run(target, places.workspace(), keep=keep, using=using, force=force), json)


@app.command
def pretrain(
    *,
    tasks: str,
    output: FileOrFolder,
    seed: int = 0,
    places: Places = Places(),
    training: Training = Training(),
    running: Running = Running(),
) -> None:
    """Further pretraining: the backbone reads the training texts of tasks, guessing hidden words, before any task.

    The result is a backbone folder for --backbone of every other command. Unless rates are given, the encoder learns
    at 1e-5 and a head that is fresh at 1e-3. Of the options of training, those of tasks have no effect.

    Parameters
    ----------
    tasks
        Whose texts, such as sst,quora.
    output
        Folder for the backbone.
    seed
        Fixes the order of texts, what is hidden, and dropout.
    """
    from stages.pretrain import pretrain as run

    workspace = places.workspace(**running.settings())
    found = run(_listed(tasks) or [], output, training.parse("full"), workspace, seed=seed, limit=running.limit)
    if not _is_main_process():
        return
    before, after = found["masked_accuracy"]["before"], found["masked_accuracy"]["after"]
    print(
        f"pretrain {', '.join(found['rows'])}: {after:.1%} of hidden words guessed, before {before:.1%}"
        f" (epoch {found['best_epoch']}), {found['seconds']:.0f} s"
    )
    print(f"in {output}: use it with --backbone {output}")
    if running.json:
        print(json_module.dumps({key: found[key] for key in ("run", "backbone", "masked_accuracy", "seconds")}))


@app.command
def compare(
    *,
    study: str = "default",
    targets: str | None = None,
    sources: str | None = None,
    seeds: str | None = None,
    methods: str | None = None,
    reference: str | None = None,
    target_limit: int | None = None,
    dev_limit: int | None = None,
    curve: bool | None = None,
    curve_rows: str | None = None,
    dry_run: Flag = False,
    places: Places = Places(),
    training: Training = Training(),
    running: Running = Running(),
) -> int:
    """Stage three: compare fusion with head-only, full, sequential and joint fine-tuning and single adapters.

    Options of training hold for every row; what differs between rows is written in the study.

    Parameters
    ----------
    study
        A shipped study (see studies list) or a TOML file.
    targets
        Tasks to compare on, such as sst,sts (from the study).
    sources
        Tasks beside the targets that knowledge comes from, such as imdb,sick (from the study).
    seeds
        Such as 1,2,3 (from the study).
    methods
        Rows of the study or methods, such as full,adapter,fusion (from the study).
    reference
        The row that the others are tested against (from the study).
    target_limit
        Use only N training rows of the target; sources keep --limit (from the study).
    dev_limit
        Score on only N dev rows of every task, the same for all runs (from the study).
    curve
        Whether to run the low-resource curve: the rows again on few training rows of each target (from the study).
    curve_rows
        How many rows those are at each point, such as 100,300 (from the study).
    dry_run
        Check everything and say what would be run and how long it would take; train nothing.
    """
    from stages.compare import compare as stage
    from stages.studies import find_study

    chosen = find_study(
        study,
        targets=_listed(targets),
        sources=_listed(sources),
        seeds=_listed(seeds, "--seeds", int),
        methods=_listed(methods),
        reference=reference,
        limit=running.limit,
        target_limit=target_limit,
        dev_limit=dev_limit,
        curve=curve,
        curve_rows=_listed(curve_rows, "--curve-rows", int),
    ).with_recipe(**training.values())
    workspace = places.workspace(**running.settings())
    if dry_run:
        planned = stage.dry_run(chosen, workspace)
        print(planned.text())
        if running.json:
            print(json_module.dumps(planned.summary()))
        return 0
    result, folder = stage.compare(chosen, workspace)
    if not _is_main_process():
        return 0
    print((folder / "tables.md").read_text(encoding="utf-8"))
    print(f"page: {folder / 'index.html'}")
    failed = [entry for entry in result.entries if entry.error is not None]
    if failed:
        print(f"error: {len(failed)} of {len(result.entries)} cells have no run; the table says why", file=sys.stderr)
    if running.json:
        done = len(result.entries) - len(failed)
        print(json_module.dumps({"study": chosen.name, "runs": done, "failed": len(failed), "reports": str(folder)}))
    return 2 if failed else 0


@app.command
def report(
    *,
    study: str = "default",
    reports: FileOrFolder = Path("reports"),
    attention: str | None = None,
    runs: str | None = None,
) -> None:
    """Write a study's tables, figures and page again, without training.

    Parameters
    ----------
    study
        A study that compare has run.
    reports
        Where runs, tables and pages are kept.
    attention
        Draw what the models attend to in a sentence, or in two as "a ||| b" (none).
    runs
        Whose, such as RUN,RUN (the first run of each row on the first target).
    """
    from stages.report import report as run

    print(f"page: {run(study, reports, attention, _listed(runs)) / 'index.html'}")


@app.command
def demo(*, output: FileOrFolder = Path("demo"), seed: int = 0) -> int:
    """The whole pipeline on generated tasks and a nano BERT, with no download: a few minutes on two cores.

    Parameters
    ----------
    output
        Folder for everything it makes.
    seed
        Of the generated tasks and the backbone.
    """
    from stages.demo import demo as run

    return run(output, seed)


@app.command
def predict(
    *,
    target: str,
    input: FileOrFolder,
    output: FileOrFolder,
    using: str = "auto",
    drop_layers: str | None = None,
    batch_size: int = 64,
    precision: Precision = "auto",
    json: Flag = False,
    places: Places = Places(),
) -> None:
    """Predict for rows without labels: id, prediction and, for classes, one probability a class.

    Parameters
    ----------
    target
        The task to predict, or several, such as sst,quora,sts: columns are then named <task>_prediction and so on.
    input
        Table with the text columns of each task (parquet, csv, tsv or jsonl by suffix).
    output
        Table to write, in the input's order.
    using
        fusion, adapter, a run, or ensemble:NAME; auto is the best fusion, else the best adapter.
    drop_layers
        Layers whose adapters or fusion are left out, such as 0-4 or 0,1,3: faster, without training anew (none).
    batch_size
        Rows a forward pass.
    precision
        auto is bf16 on a GPU that has it, else fp32.
    json
        Print the result as one JSON object on the last line.
    """
    from stages.predict import predict as run

    result = run(
        target,
        input,
        output,
        places.workspace(),
        using=using,
        batch_size=batch_size,
        precision=precision,
        drop_layers=drop_layers,
    )
    if not _is_main_process():
        return
    for one in result.get("targets", [result]):
        print(f"{result['rows']} predictions of run {one['run']} for {one['task']} in {result['output']}")
    if json:
        print(json_module.dumps(result))


@app.command
def ensemble(
    *,
    target: str,
    name: str,
    runs: str | None = None,
    rule: Literal["mean", "weighted", "mode", "median"] = "mean",
    choose_on: Literal["half", "all"] = "half",
    best: int | None = None,
    seed: int = 0,
    data: FileOrFolder | None = None,
    reports: FileOrFolder = Path("reports"),
    json: Flag = False,
) -> None:
    """Join finished runs into an ensemble, from their saved predictions alone; nothing is trained.

    Parameters
    ----------
    target
        The task.
    name
        What it is kept under; predict --using ensemble:NAME uses it.
    runs
        What to choose from, such as RUN,RUN,RUN (every finished run of the task, on any backbone).
    rule
        mean: of members chosen best first, while the score does not fall; weighted: with weights that add up to one;
        mode: the class that most say; median: of scores.
    choose_on
        half chooses members and weights on one half of dev and scores on the other, which is not free of choice: the
        members' epochs were chosen on all of dev. all chooses and scores on all of it, which flatters more.
    best
        mode, median: how many take part, the best on dev (5; all that --runs names).
    seed
        Of the halves.
    data
        Folder that may hold <task>/task.toml.
    reports
        Where runs, tables and pages are kept.
    json
        Print the result as one JSON object on the last line.
    """
    from stages.ensemble import ensemble as run
    from stages.ensemble import told

    task = find_task(target, data)
    record = run(task, name, reports, runs=_listed(runs), rule=rule, chosen_on=choose_on, best=best, seed=seed)
    print(told(record))
    if json:
        print(json_module.dumps(record.summary()))


tasks = App(name="tasks", help="The tasks that can be trained.")
app.command(tasks)


@tasks.command(name="list")
def tasks_list() -> None:
    """Every built-in task."""
    for task in built_in_tasks().values():
        names = ", ".join((task.name, *task.aliases))
        print(f"{names:<14} {task.metric:<9} {task.description}")


@tasks.command(name="show")
def tasks_show(name: str, *, data: FileOrFolder | None = None) -> None:
    """A task with all its settings.

    Parameters
    ----------
    name
        A built-in task, a task in --data, or a task file.
    data
        Folder that may hold <task>/task.toml.
    """
    print(find_task(name, data).model_dump_json(indent=2))


@tasks.command(name="check")
def tasks_check(file: FileOrFolder) -> None:
    """Check a task file; every mistake is reported at once.

    Parameters
    ----------
    file
        The TOML file.
    """
    from pipeline.data.tasks import Task

    print(f"{file}: task '{Task.read(file).name}' is fine")


store_app = App(name="store", help="The trained adapters and fusions.")
app.command(store_app)
StoreFolder = Annotated[FileOrFolder, Parameter(name="--store", help="Where trained adapters and fusions are kept.")]


@store_app.command(name="list")
def store_list(*, store: StoreFolder = Path("adapters_store")) -> None:
    """Every artifact with its task, score and backbone."""
    from pipeline.records.store import Store

    here = Store(store)
    here.check()
    manifests = [artifact.manifest for artifact in here.artifacts()]
    if not manifests:
        print(f"{store} holds no artifacts")
    for manifest in manifests:
        sources = "+".join(source.task for source in manifest.sources)
        print(
            f"{manifest.run}  {manifest.kind:<8} {manifest.task:<12} seed {manifest.seed:<3}"
            f" {manifest.metric} {manifest.dev:.4f}  {manifest.backbone} ({manifest.backbone_weights[:8]}) {sources}"
        )


@store_app.command(name="verify")
def store_verify(*, store: StoreFolder = Path("adapters_store")) -> None:
    """Check every artifact: its manifest, the sha256 of its files, and the adapters of a fusion."""
    from pipeline.records.store import Store

    count = Store(store).verify()
    print(f"{count} artifacts are complete and unchanged" if count else f"{store} holds no artifacts")


@store_app.command(name="remove")
def store_remove(run: str, *, store: StoreFolder = Path("adapters_store")) -> None:
    """Delete an artifact that no fusion needs.

    Parameters
    ----------
    run
        Its run, as store list shows it.
    """
    from pipeline.records.store import Store

    print(f"removed {Store(store).remove(run)}")


@store_app.command(name="export")
def store_export(run: str, file: FileOrFolder, *, store: StoreFolder = Path("adapters_store")) -> None:
    """Write an artifact, with the adapters of a fusion, into one zip file.

    Parameters
    ----------
    run
        Its run, as store list shows it.
    file
        The zip file to write.
    """
    from pipeline.records.packing import export_artifact
    from pipeline.records.store import Store

    for artifact in export_artifact(Store(store), run, file):
        print(f"{artifact.manifest.kind} {artifact.manifest.task} {artifact.manifest.run}")


@store_app.command(name="import")
def store_import(file: FileOrFolder, *, store: StoreFolder = Path("adapters_store")) -> None:
    """Unpack an exported zip file into the store, after checking it.

    Parameters
    ----------
    file
        The zip file.
    """
    from pipeline.records.packing import import_artifacts
    from pipeline.records.store import Store

    imported = import_artifacts(Store(store), file)
    for artifact in imported.added:
        print(f"{artifact.manifest.kind} {artifact.manifest.task} {artifact.folder}")
    for artifact in imported.already_here:
        print(f"{artifact.manifest.kind} {artifact.manifest.task} {artifact.folder}: already here")


studies = App(name="studies", help="The comparisons that are shipped.")
app.command(studies)


@studies.command(name="list")
def studies_list() -> None:
    """Every shipped study."""
    from pipeline.settings.study import study_names
    from stages.studies import STUDIES, find_study

    names = study_names(STUDIES)
    width = max(map(len, names))
    for name in names:
        print(f"{name:<{width}} {find_study(name).description}")


@studies.command(name="show")
def studies_show(name: str) -> None:
    """A study with all its settings.

    Parameters
    ----------
    name
        A shipped study or a TOML file.
    """
    from stages.studies import find_study

    print(find_study(name).model_dump_json(indent=2))


def _listed(text: str | None, option: str = "", kind: type = str) -> list[Any] | None:
    """``a,b,c`` as a list; None stays None, so that the study's own value holds."""
    if text is None:
        return None
    try:
        return [kind(part.strip()) for part in text.split(",") if part.strip()]
    except ValueError:
        raise PipelineError(f"{option} {text}: write whole numbers with commas, such as 1,2,3") from None


def _is_main_process() -> bool:
    from pipeline.training.devices import is_main_process

    return is_main_process()


def _print_result(record: RunRecord, as_json: bool) -> None:
    if not _is_main_process():
        return
    cost = record.cost
    print(
        f"{record.kind} {record.task}: dev {record.metric} {record.dev:.4f} (epoch {record.best_epoch}),"
        f" {cost.trainable_parameters:,} trainable parameters, {cost.seconds:.0f} s,"
        f" {cost.examples_per_second:.0f} examples/s, {cost.peak_memory_mb:.0f} MB, run {record.run}"
    )
    if record.anchor and record.anchor != record.task:
        print(f"began as the adapter of {record.anchor}")
    if record.artifact:
        print(f"in {record.artifact}")
    if as_json:
        print(json_module.dumps(record.summary()))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status: 0 done, 2 the user can mend it."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        check_text(given)
        try:
            status = app(given, exit_on_error=False, print_error=False, result_action="return_value")
        finally:
            sys.stdout.flush()  # here, where what a closed or full standard output raises is handled
    except PipelineError as error:
        print_error(str(error))
        return 2
    except cyclopts.CycloptsError as error:
        print_error(f"{error} (see --help)")
        return 2
    except OSError as error:
        reason = refusal(error)
        if reason is None:
            raise
        where = f"{error.filename}: " if error.filename is not None else ""
        print_error(f"{where}{reason}. Nothing finished was lost; mend it and run the same command again")
        return 2
    return status if isinstance(status, int) else 0
