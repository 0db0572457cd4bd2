"""Verbs for studies: compare, report, pool, studies list and show."""

from dataclasses import dataclass
from typing import Annotated

from cyclopts import App, Group, Parameter

from pipeline.cli import options
from pipeline.cli.printing import print_lines, print_plan, print_result
from pipeline.settings.study import ExecutorName, ScoredOn
from pipeline.system.errors import BUG
from pipeline.system.process import is_main_process
from pipeline.system.streams import LIBRARIES, announce, notice, print_error
from stages.studies import find_study, study_names

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
        print_plan(stage.dry_run(chosen, workspace), running.json)
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
