"""Verbs for the store: store list, verify, remove, export, import."""

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from pipeline.cli.options import REPORTS, STORE, Flag, Json, ReportsFolder, StoreFolder
from pipeline.cli.printing import print_lines, print_result
from pipeline.records.archives import export_artifact, import_artifacts
from pipeline.records.store import Artifact, Store

store_app = App(name="store", help="The trained adapters and fusions.")
Run = Annotated[str, Parameter(help="Its run, as store list shows it.")]


@store_app.command(name="list")
def store_list(*, store: StoreFolder = STORE, json: Json = False) -> None:
    """Every artifact with its task, score and backbone."""
    opened = Store(store)
    opened.check()
    manifests = [artifact.manifest for artifact in opened.artifacts()]
    lines = [
        f"{each.run}  {each.kind:<8} {each.task:<12} seed {each.seed:<3} {each.metric} {each.dev:.4f}"
        f" on {each.dev_rows:,} rows  {each.backbone} ({each.backbone_weights[:8]})"
        f" {'+'.join(source.task for source in each.sources)}"
        for each in manifests
    ]
    summary = [each.model_dump(mode="json", exclude={"recipe", "files", "meaning"}) for each in manifests]
    print_result(lines or [f"{store} has no artifacts"], {"artifacts": summary}, json)


@store_app.command(name="verify")
def store_verify(*, store: StoreFolder = STORE) -> None:
    """Check every artifact: its manifest, the sha256 of its files, and the adapters of a fusion."""
    count = Store(store).verify()
    print_lines(f"{count} artifacts are complete and unchanged" if count else f"{store} has no artifacts")


@store_app.command(name="remove")
def store_remove(
    run: Run, *, force: Flag = False, store: StoreFolder = STORE, reports: ReportsFolder = REPORTS
) -> None:
    """Delete an artifact that no fusion and no ensemble needs.

    Args:
        force: Delete it even if a fusion or an ensemble needs it; what breaks is printed.
    """
    from pipeline.records.ensembles import Ensembles  # it loads pandas

    print_lines(f"removed {Store(store).remove(run, force, Ensembles(reports).why_kept(run))}")


@store_app.command(name="export")
def store_export(run: Run, file: Path, *, store: StoreFolder = STORE) -> None:
    """Write an artifact, with the adapters of a fusion, into one file.

    Args:
        file: The .tar.xz file to write.
    """
    for artifact in export_artifact(Store(store), run, file):
        print_lines(_named(artifact, artifact.manifest.run))


@store_app.command(name="import")
def store_import(file: Path, *, store: StoreFolder = STORE) -> None:
    """Check an exported file and unpack it into the store.

    Args:
        file: The .tar.xz file that store export wrote.
    """
    imported = import_artifacts(Store(store), file)
    for artifact in imported.added:
        print_lines(_named(artifact, artifact.folder))
    for artifact in imported.already_here:
        print_lines(f"{_named(artifact, artifact.folder)}: already here")


def _named(artifact: Artifact, where: object) -> str:
    return f"{artifact.manifest.kind} {artifact.manifest.task} {where}"
