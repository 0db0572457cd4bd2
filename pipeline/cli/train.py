"""Verbs that train (extract, fuse, prune, pretrain, demo, compare) or report on studies (report, pool, studies)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Group, Parameter

from pipeline.cli import options
from pipeline.cli.printing import print_filled, print_lines, print_result, print_run
from pipeline.settings.parts import (
    EXPERTS,
    MOST_EXPERTS,
    SUMMARIES,
    USUAL_FORM,
    AdapterKind,
    FusionForm,
    FusionImplementation,
)
from pipeline.settings.study import ExecutorName, ScoredOn
from pipeline.system.errors import BUG, PipelineError
from pipeline.system.process import is_main_process
from pipeline.system.streams import LIBRARIES, announce, notice, print_error
from stages.studies import find_study, study_names

Sources = Annotated[str | None, Parameter(name=("--sources", "--adapters"))]


def extract(
    *,
    task: str,
    adapter: AdapterKind | None = None,
    bottleneck: Annotated[int | None, options.Advanced] = None,
    drop_layers: Annotated[str | None, options.Advanced] = None,
    train_layernorm: Annotated[options.Flag, options.Advanced] = False,
    start_from: str | None = None,
    without_rows_of: Annotated[str | None, options.Advanced] = None,
    soup: Annotated[int, options.between(1, MOST_EXPERTS)] = 1,
    places: options.Places = options.Places(),
    training: options.Training = options.Training(),
    running: options.OneRun = options.OneRun(),
) -> None:
    """Stage one: train an adapter for a task on the frozen backbone.

    Args:
        task: A built-in task (see tasks list), <data>/TASK/task.toml, or a task file.
        adapter: houlsby: bottlenecks after attention and FFN; pfeiffer: after the FFN only; pal: a narrow attention
            layer beside each layer; prefix: vectors in front of each layer's input; prefix-tuning: keys and values in
            front of each layer's own; lora: low-rank terms on query and value; ia3: vectors that rescale keys, values
            and the feed-forward layer; bitfit: biases; unipelt: gated bottlenecks, prefixes and LoRA (houlsby). Only
            bottlenecks can be fused.
        bottleneck: Width of the adapter (64).
        drop_layers: Layers without an adapter, such as 0-4 or 0,1,3: faster; the lowest layers cost least score (none).
        train_layernorm: Train the LayerNorms too; such an adapter cannot be fused.
        start_from: Warm-start from another task's adapter, TASK or TASK@RUN. Of several with commas, or with best of
            all in the store, from the one that a linear probe finds most useful, if any helps. TASK itself: continue
            its last model that was trained on other rows, as after tasks add (a new adapter).
        without_rows_of: Leave out training rows whose text occurs in dev or test of these tasks, such as sts,mrpc: the
            targets that this adapter will be fused for (none).
        soup: Train N adapters that start alike and see the rows in other orders, and keep the mean of their weights.
            It is one adapter, and averages out some of what a few hundred rows leave to chance; N times the time.
    """
    apart = options.names_in(without_rows_of) or ()
    own = {"adapter": adapter, "bottleneck": bottleneck, "drop_layers": drop_layers, "train_layernorm": train_layernorm}
    recipe = training.parse("adapter", **own)
    itself, *others = (task.name for task in places.check(task, *apart, *options.tasks_in(start_from)))
    if itself in others[: len(apart)]:
        named = apart[others.index(itself)]
        raise PipelineError(f"--without-rows-of: {named} is the task itself: --drop-overlap drops its own")
    announce(LIBRARIES)
    from stages import extract as stage

    trained = stage.extract(
        task,
        recipe,
        places.workspace(running),
        seed=running.seed,
        limit=running.limit,
        start_from=start_from,
        without_rows_of=apart,
        soup=soup,
        force=running.force,
        probed=True,
        given=training.given(**own),
    )
    print_run(trained.record, running.json, is_new=trained.is_new, probe=trained.probe)


def fuse(
    *,
    target: str,
    sources: Sources = None,
    adapter: Annotated[Literal["houlsby", "pfeiffer"] | None, options.Advanced] = None,
    drop_layers: Annotated[str | None, options.Advanced] = None,
    fusion: Annotated[FusionForm | None, Parameter(help=f"{SUMMARIES} ({USUAL_FORM}).")] = None,
    fusion_impl: Annotated[FusionImplementation | None, options.Advanced] = None,
    experts: Annotated[int | None, options.between(2, MOST_EXPERTS)] = None,
    target_limit: Annotated[options.Count, options.Advanced] = None,
    places: options.Places = options.Places(),
    training: options.Training = options.Training(),
    running: options.OneRun = options.OneRun(),
) -> None:
    """Stage two: fuse several adapters for one target, by default experts that start from the best source.

    Args:
        target: The task that the fusion is for.
        sources: Tasks that may help the target, such as sst,quora, or sst@RUN for one of several adapters. Missing
            adapters are trained first, with the training options that apply; so is the target's own adapter, if the
            fusion uses it. best:8 takes the eight adapters in the store that linear probes rank highest; a gated
            fusion then keeps those that help together (every adapter in the store that fits).
        adapter: Kind of the adapters to fuse (houlsby).
        drop_layers: Layers without fusion, such as 0-4 or 0,1,3 (those without adapters).
        fusion_impl: How fusion is computed: fast, or stock for AdapterHub's own code; equal up to rounding (fast).
        experts: Number of adapters in a fusion of experts (3). They are trained on the target, all warm-started from
            the same source, and their mean is taken in every layer.
        target_limit: Use only N training rows of the target; sources that are trained first keep --limit (as --limit).
    """
    own = {"adapter": adapter, "drop_layers": drop_layers, "fusion": fusion, "fusion_impl": fusion_impl}
    recipe = training.parse("fusion", {"fusion": USUAL_FORM}, **own)
    if experts is not None and not recipe.form.of_target:
        raise PipelineError(f"--experts {experts}: only --fusion experts has them")
    places.check(target, *options.tasks_in(sources))
    announce(LIBRARIES)
    from stages import fuse as stage

    trained = stage.fuse(
        target,
        recipe,
        places.workspace(running),
        seed=running.seed,
        limit=running.limit,
        target_limit=target_limit,
        sources=sources,
        experts=experts or EXPERTS,
        force=running.force,
        probed=True,
        given=training.given(**own),
    )
    print_run(trained.record, running.json, is_new=trained.is_new, probe=trained.probe)


def prune(
    *,
    target: str,
    keep: int,
    using: str = "fusion",
    dev_limit: options.Count = None,
    force: options.Flag = False,
    json: options.Json = False,
    places: options.Places = options.Places(),
) -> None:
    """Remove the adapters of a trained fusion that get the least attention; nothing is trained.

    Args:
        target: The task that the fusion is for.
        keep: How many adapters to keep: those with the most attention on dev.
        using: A RUN of a fusion, or fusion: the target's best on dev.
        dev_limit: Select and score on only N rows of dev, the same for every run (all).
        force: Prune again even if this run is finished.
    """
    running = options.Running(dev_limit=dev_limit)
    places.check(target)
    announce(LIBRARIES)
    from stages import prune as stage

    workspace = places.workspace(running, usual="")
    made = stage.prune(target, workspace, keep=keep, using=using, force=force)
    print_run(made.record, json, is_new=made.is_new, shares=stage.shares_of(made.record, workspace))


def pretrain(
    *,
    tasks: str,
    output: Path,
    seed: options.Seed = 0,
    places: options.Places = options.Places(),
    training: options.Training = options.Training(),
    running: options.Running = options.Running(),
) -> None:
    """Pretrain the backbone further on the training texts of tasks, as a masked language model.

    The result is a folder for --backbone of every other command. By default the encoder learns at 1e-5, and a new
    head at 1e-3. Training options that describe tasks, such as --head, have no effect.

    Args:
        tasks: The tasks whose texts are read, such as sst,quora.
        output: Folder for the backbone.
        seed: Determines the order of texts, which tokens are masked, and dropout.
    """
    recipe, names = training.parse("full"), options.names_in(tasks) or []
    places.check(*names)
    announce(LIBRARIES)
    from stages import pretrain as stage

    workspace = places.workspace(running)
    made = stage.pretrain(names, output, recipe, workspace, seed=seed, limit=running.limit)
    print_filled("pretrain", made.record.summary(), running.json, made=made, output=output)


def demo(*, output: Path = Path("demo"), seed: options.Seed = 0) -> int:
    """The whole pipeline on generated tasks and a nano BERT, with no download: a few minutes on two cores.

    Args:
        output: Folder for everything that it makes.
        seed: Determines the generated tasks and the backbone.
    """
    announce(LIBRARIES)
    from stages import demo as stage

    return stage.demo(output, seed)


studies = App(name="studies", help="The shipped studies.")


@Parameter(name="*", group=Group("Machines", sort_key=3))
@dataclass(frozen=True, kw_only=True)
class Machines:
    """Where the runs of a study are trained."""

    executor: ExecutorName = "local"
    "local: here; ray: on a Ray cluster; slurm: as jobs of Slurm. The study's [resources] set what a run gets there."
    jobs: int | None = None
    "Runs at once; locally, each process gets its share of the cores (local: 1; else as many as there is room for)."
    address: str | None = None
    "Address of a Ray cluster, such as 10.0.0.1:6379 or auto (RAY_ADDRESS; without it, this machine alone)."


def compare(
    *,
    study: str = "default",
    targets: str | None = None,
    sources: str | None = None,
    seeds: str | None = None,
    looks: Annotated[int | None, options.Advanced] = None,
    methods: str | None = None,
    reference: Annotated[str | None, options.Advanced] = None,
    target_limit: int | None = None,
    scoring: Annotated[ScoredOn | None, options.Advanced] = None,
    curve: Annotated[bool | None, options.Advanced] = None,
    curve_rows: Annotated[str | None, options.Advanced] = None,
    keep_weights: Annotated[options.Flag, options.Advanced] = False,
    dry_run: options.Flag = False,
    machines: Machines = Machines(),
    places: options.Places = options.Places(),
    training: options.Training = options.Training(),
    running: options.Running = options.Running(),
) -> int:
    """Stage three: compare fusion with head-only, full and sequential fine-tuning, joint training and single adapters.

    Training options apply to every row. The study sets what differs between rows.

    Args:
        study: A shipped study (see studies list) or a TOML file.
        targets: Tasks to compare on, such as sst,sts (from the study).
        sources: More tasks to transfer from, besides the targets, such as imdb,sick (from the study).
        seeds: Seeds, such as 1,2,3 (from the study).
        looks: 1, plus 1 each time that you added seeds after you had seen results: all tests are corrected for as many
            looks (from the study).
        methods: Rows of the study or methods, such as full,adapter,fusion (from the study).
        reference: The row that the others are tested against (from the study).
        target_limit: Use only N training rows of the target; sources keep --limit (from the study).
        scoring: The test rows, and the validation rows that select. half: one half of dev, the other half selects;
            test: the labelled test split, dev selects; held-out: training rows that nothing trains on, dev selects;
            train: dev, a part of the training rows selects; dev: dev, which also selects (from the study, whose
            exceptions for single tasks stay).
        curve: Whether to run the low-resource curve: all rows, or those in the study's [curve] methods, on few training
            rows of each target (from the study).
        curve_rows: Training rows at each point of the curve, such as 100,300 (from the study).
        keep_weights: Keep the trained models of all rows for predict, also those of full fine-tuning: 440 MB each for
            BERT-base (only adapters, fusions, heads, and rows with keep_weights = true).
        dry_run: Check everything, and show the missing runs and their estimated time; train nothing.
    """
    chosen = find_study(
        study,
        training.values(),
        targets=options.names_in(targets),
        sources=options.names_in(sources),
        seeds=options.numbers_in(seeds, "--seeds"),
        looks=looks,
        methods=options.names_in(methods),
        reference=reference,
        limit=running.limit,
        target_limit=target_limit,
        dev_limit=running.dev_limit,
        scoring=scoring,
        curve=curve,
        curve_rows=options.numbers_in(curve_rows, "--curve-rows"),
    )
    places.check(*chosen.targets, *chosen.sources)
    announce(LIBRARIES)
    from stages.compare import compare as stage
    from stages.compare.executors.processes import executor_of
    from stages.report import summary_of

    workspace = places.workspace(running)
    executor = executor_of(machines.executor, machines.jobs, machines.address, chosen.resources, places.reports)
    if dry_run:
        plan = stage.dry_run(chosen, workspace)
        print_filled("plan", plan.summary(), running.json, plan=plan)
        return 0
    result, folder = stage.compare(chosen, workspace, keep_weights=keep_weights, executor=executor)
    if not is_main_process():
        return 0
    errors = [entry.error for entry in result.entries if entry.error is not None]
    cells, failed = len(result.entries), len(errors)
    summary = {"study": chosen.name, "runs": cells - failed, "failed": failed, "reports": str(folder)}
    print_result(summary_of(folder), summary, running.json)
    if failed:
        print_error(f"{failed} of {cells} cells have no run: the notes in its tables say why")
    if any(error.startswith(BUG) for error in errors):  # not what the user can mend
        return 1
    return 2 if failed else 0


def report(
    *,
    study: str = "default",
    reports: options.ReportsFolder = options.REPORTS,
    attention: options.FreeText | None = None,
    runs: str | None = None,
) -> None:
    """Write a study's tables, figures and page again, without training.

    Args:
        study: A study that compare has run, by its name or TOML file.
        attention: Draw what the models attend to in a sentence, or in two as "a ||| b" (none).
        runs: The models to draw, such as RUN,RUN (the first run of each row on the first target).
    """
    from stages import report as stage

    print(f"page: {stage.report(study, reports, attention, options.names_in(runs)) / 'index.html'}")


def pool(
    studies: Annotated[tuple[str, ...], Parameter(help="Studies that compare has run.", negative=())],
    *,
    targets: str | None = None,
    variants: str | None = None,
    opponents: str | None = None,
    reports: options.ReportsFolder = options.REPORTS,
    json: options.Json = False,
) -> None:
    """Test the fusions of several studies together, on the mean of all their targets, without training.

    Each study has other targets, and its first row of fusion is compared with the best row of each kind.

    Args:
        targets: Only these targets, such as sst,sts (all).
        variants: Rows of fusion that represent the first one where the validation rows prefer them, such as even (those
            that a study names itself).
        opponents: Studies whose rows without fusion are opponents too, on the targets, rows and seeds that they share
            with the others (none).
    """
    from stages.pool import pool_studies

    found = pool_studies(
        studies, reports, options.names_in(targets), options.names_in(variants) or (), options.names_in(opponents) or ()
    )
    for cell in found.missing:
        notice(f"note: no run of {cell}")
    for kind in found.untested:
        notice(f"note: not tested against {kind}: a study lacks it on a target, or selected it by its scores")
    print_result(found.lines, found.summary(), json)


@studies.command(name="list")
def studies_list() -> None:
    """Every shipped study."""
    names = study_names()
    width = max(map(len, names))
    for name in names:
        print_lines(f"{name:<{width}} {find_study(name).description}")


@studies.command(name="show")
def studies_show(name: str) -> None:
    """A study with all its settings.

    Args:
        name: A shipped study or a TOML file.
    """
    print_lines(*find_study(name).model_dump_json(indent=2).split("\n"))
