"""The tables, figures and page of a study, from the ledger alone."""

from collections.abc import Sequence
from pathlib import Path

from pipeline.records.ledger import Ledger
from pipeline.reporting.build import build_report
from pipeline.reporting.entries import StudyResult
from pipeline.reporting.page import write_page
from pipeline.reporting.runs import AttentionMap
from pipeline.reporting.tables import write_tables
from pipeline.system.errors import PipelineError
from pipeline.system.locks import locked
from pipeline.system.reading import present, read_model
from stages.attention import maps_of


def write_report(result: StudyResult, ledger: Ledger, folder: Path, maps: Sequence[AttentionMap] = ()) -> None:
    """Write results.csv, tables.md, tables.tex, tables/, figures/ and index.html of a study into ``folder``."""
    report = build_report(result, ledger, folder, maps)
    write_tables(report, folder)
    write_page(report, folder)


def report(name: str, reports: Path, attention: str | None = None, runs: Sequence[str] | None = None) -> Path:
    """Write a study's report again without training.

    Args:
        attention: a sentence, or two as ``"a ||| b"``, whose attention maps are drawn too.
        runs: the runs whose models are shown; by default each row's first run on the first target.

    Raises:
        PipelineError: the study was never compared here, or its runs are gone.
    """
    if runs is not None and attention is None:
        raise PipelineError("--runs names the models whose attention is drawn: give --attention with it")
    folder = reports / name
    file = folder / "study.json"
    if not present(file):
        raise PipelineError(f"{file}: no such study here: run python -m pipeline compare --study {name} first")
    result = read_model(StudyResult, file, "run compare again")
    ledger, maps = Ledger(reports), list[AttentionMap]()
    if attention is not None:
        maps = maps_of(attention, runs, result, ledger)
    with locked(folder / ".lock"):
        write_report(result, ledger, folder, maps)
    return folder
