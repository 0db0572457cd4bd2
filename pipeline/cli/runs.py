"""Verbs for what is kept: runs, store, du, doctor."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from pipeline.cli.options import REPORTS, STORE, Flag, Json, Kept, Places, ReportsFolder, StoreFolder
from pipeline.cli.printing import (
    print_described_run,
    print_filled,
    print_findings,
    print_lines,
    print_result,
    print_runs,
    size_text,
)
from pipeline.records.store import Artifact, Store
from pipeline.settings.kinds import Method
from pipeline.system.atomic import size_of
from pipeline.system.errors import PipelineError, few, one_line
from pipeline.system.streams import LIBRARIES, announce, notice

runs_app = App(name="runs", help="The runs in the reports folder, finished or not.")
_MOST = 10  # warnings
Run = Annotated[str, Parameter(help="A run, as runs list shows it, or the first four or more characters of its name.")]


@runs_app.command(name="list")
def runs_list(
    *,
    task: str | None = None,
    kind: Method | None = None,
    since: str | None = None,
    unused: Flag = False,
    sort: Literal["date", "task", "score", "size", "seconds"] = "date",
    kept: Kept = Kept(),
    json: Json = False,
) -> None:
    """Every finished run with its date, task, seed, epochs, score on dev and on test rows if it has any, and size.

    Args:
        task: Only runs that trained on this task.
        kind: Only runs of this kind.
        since: Only runs that finished on this date or later, such as 2026-01-31.
        unused: Only runs that no artifact in the store, other run, study or ensemble needs.
        sort: date: oldest first; task: by name, kind and seed; score: best on dev first within a task; size, seconds:
            largest first.
    """
    runs = kept.runs()
    rows = runs.listed(task=task, kind=kind, since=since, unused=unused, sort=sort)
    _warn(runs.problems)
    none = "no such runs" if runs.records else f"no finished runs in {runs.ledger.root}"
    print_runs(rows, len(runs.unfinished), none, json)
    if not rows and runs.records:
        trained = sorted({name for record in runs.records.values() for name in record.trained_on})
        notice(one_line(f"the finished runs here are of {', '.join(trained)}"))
    if runs.unfinished:
        notice(f"{len(runs.unfinished)} unfinished: see du")


@runs_app.command(name="show")
def runs_show(run: Run, *, kept: Kept = Kept(), json: Json = False) -> None:
    """One run: settings that are not at their default, data, sources, cost, curve, and what needs it."""
    runs = kept.runs()
    description = runs.described(run)
    _warn(runs.problems)
    print_described_run(description, json)


@runs_app.command(name="compare")
def runs_compare(
    run: Run,
    reference: Annotated[str, Parameter(help="The run that it is compared with, likewise.")],
    *,
    kept: Kept = Kept(),
    json: Json = False,
) -> None:
    """Two runs: the settings that differ, the scores, and a paired test if both kept predictions of the same rows."""
    from stages.run_comparison import compare_runs

    compared = compare_runs(kept.runs(), run, reference)
    print_filled("run_comparison", compared.summary(), json, it=compared)


@runs_app.command(name="remove")
def runs_remove(
    runs: Annotated[tuple[str, ...], Parameter(help="Exact names, as runs list shows them.", negative=())] = (),
    *,
    unused: Flag = False,
    force: Flag = False,
    kept: Kept = Kept(),
    json: Json = False,
) -> None:
    """Delete runs, finished or not, without asking. Artifacts in the store stay.

    Args:
        unused: Also every run that runs list --unused shows.
        force: Delete runs that the store, another run, a study or an ensemble needs, or may need if its file cannot be
            read; what breaks is printed.
    """
    if not (runs or unused):
        raise PipelineError("runs remove: name runs, or give --unused")
    shelf = kept.runs()
    found = [row.record.run for row in shelf.listed(unused=True)] if unused else ()
    removal = shelf.remove([*runs, *found], force=force)
    _warn(shelf.problems)
    for line in removal["broken"]:
        notice(f"warning: broken: {line}")
    names = ", ".join(few(removal["removed"])) or "nothing"
    print_result([f"removed {names}: {size_text(removal['bytes'])}"], removal, json)


@runs_app.command(name="export")
def runs_export(
    file: Path, *, study: str | None = None, lean: Flag = False, kept: Kept = Kept(), json: Json = False
) -> None:
    """Write the records of finished runs into one file: settings, scores, curves, predictions; no weights.

    Args:
        file: The .tar.xz file to write.
        study: Only the runs of this study (name or TOML file) and those that they are built on, with its study.json
            (all runs).
        lean: Without the predictions of unselected trials, which report does not need.
    """
    from stages.archives import export_runs

    runs = kept.runs()
    exported, missing = export_runs(runs, file, study, lean=lean)
    _warn(runs.problems)
    if missing:
        named = one_line(", ".join(few(missing)))
        notice(f"warning: without {named}: there is no complete record here")
    lines = [f"{len(exported)} runs: {file}, {size_text(size_of(file))}"]
    print_result(lines, {"runs": exported, "missing": missing, "file": str(file)}, json)


@runs_app.command(name="import")
def runs_import(
    file: Annotated[Path, Parameter(help="The .tar.xz file that runs export wrote.")],
    *,
    reports: ReportsFolder = REPORTS,
    json: Json = False,
) -> None:
    """Check an exported file and add the runs that are not here. Runs and studies that are here stay as they are.

    Then compare trains only the missing runs of its study, and report makes the study's tables without data.
    """
    from stages.archives import import_runs

    imported = import_runs(reports, file)
    print_filled("imported_runs", asdict(imported), json, it=imported, reports=reports)


def du(*, kept: Kept = Kept(), json: Json = False) -> None:
    """How much disk space the store, runs, checkpoints, kept weights and caches take, and what can be deleted."""
    runs = kept.runs()
    usage = runs.usage()
    _warn(runs.problems)
    print_filled("disk_usage", usage, json, **usage)


def doctor(*, json: Json = False, places: Places = Places()) -> int:
    """Check versions, hardware, the Hub, backbone, data, disks, store and runs: what is fine, and what to fix.

    The exit status is 1 if there is a problem. Nothing is changed.
    """
    announce(LIBRARIES)
    from stages.doctor import examine

    return print_findings(examine(places.reports, places.store, places.backbone, places.data), json)


def _warn(problems: list[str]) -> None:
    for problem in problems[:_MOST]:
        notice(f"warning: {problem}")
    if len(problems) > _MOST:
        notice(f"warning: {len(problems) - _MOST} more: see doctor")


store_app = App(name="store", help="The trained adapters and fusions.")
Stored = Annotated[str, Parameter(help="Its run, as store list shows it.")]


@store_app.command(name="list")
def store_list(*, store: StoreFolder = STORE, json: Json = False) -> None:
    """Every artifact with its task, score and backbone."""
    opened = Store(store)
    opened.check()
    manifests = [artifact.manifest for artifact in opened.artifacts()]
    summary = [each.model_dump(mode="json", exclude={"recipe", "files", "meaning"}) for each in manifests]
    print_filled("artifacts", {"artifacts": summary}, json, manifests=manifests, store=store)


@store_app.command(name="verify")
def store_verify(*, store: StoreFolder = STORE) -> None:
    """Check every artifact: its manifest, the sha256 of its files, and the adapters of a fusion."""
    count = Store(store).verify()
    print_lines(f"{count} artifacts are complete and unchanged" if count else f"{store} has no artifacts")


@store_app.command(name="remove")
def store_remove(
    run: Stored, *, force: Flag = False, store: StoreFolder = STORE, reports: ReportsFolder = REPORTS
) -> None:
    """Delete an artifact that no fusion and no ensemble needs.

    Args:
        force: Delete it even if a fusion or an ensemble needs it; what breaks is printed.
    """
    from pipeline.records.studies import Ensembles  # it loads pandas

    print_lines(f"removed {Store(store).remove(run, force, Ensembles(reports).why_kept(run))}")


@store_app.command(name="export")
def store_export(run: Stored, file: Path, *, store: StoreFolder = STORE) -> None:
    """Write an artifact, with the adapters of a fusion, into one file.

    Args:
        file: The .tar.xz file to write.
    """
    from stages.archives import export_artifact  # it loads pandas

    for artifact in export_artifact(Store(store), run, file):
        print_lines(_named(artifact, artifact.manifest.run))


@store_app.command(name="import")
def store_import(file: Path, *, store: StoreFolder = STORE) -> None:
    """Check an exported file and unpack it into the store.

    Args:
        file: The .tar.xz file that store export wrote.
    """
    from stages.archives import import_artifacts

    imported = import_artifacts(Store(store), file)
    for artifact in imported.added:
        print_lines(_named(artifact, artifact.folder))
    for artifact in imported.already_here:
        print_lines(f"{_named(artifact, artifact.folder)}: already here")


def _named(artifact: Artifact, where: object) -> str:
    return f"{artifact.manifest.kind} {artifact.manifest.task} {where}"
