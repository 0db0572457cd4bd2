"""The tables, figures and page of a study, from the ledger alone."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from pipeline.errors import PipelineError
from pipeline.ledger import Ledger
from pipeline.reporting.build import build_report
from pipeline.reporting.entries import StudyResult
from pipeline.reporting.page import write_page
from pipeline.reporting.tables import write_tables


def write_report(result: StudyResult, ledger: Ledger, folder: Path) -> None:
    """Write results.csv, tables.md, tables.tex, tables/, figures/ and index.html of a study into ``folder``."""
    report = build_report(result, ledger, folder)
    write_tables(report, folder)
    write_page(report, folder)


def report(name: str, reports: Path) -> Path:
    """Write a study's report again, without training anything.

    Raises:
        PipelineError: the study was never compared here, or its runs are gone.
    """
    folder = reports / name
    file = folder / "study.json"
    if not file.is_file():
        raise PipelineError(f"{file}: no such study here: run python -m pipeline compare --study {name} first")
    try:
        result = StudyResult.model_validate_json(file.read_text(encoding="utf-8"))
    except (ValidationError, UnicodeDecodeError) as error:
        raise PipelineError(f"{file}: damaged: run compare again") from error
    write_report(result, Ledger(reports), folder)
    return folder
