"""Write ``index.html`` of a study, which loads nothing and runs only its own script, and of a folder of reports."""

import base64
import math
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
from pydantic import BaseModel, ConfigDict

from pipeline.records.studies import Line
from pipeline.reporting.provenance import run_view, usual, value_text
from pipeline.reporting.report import Cell, Figure, Report, Table
from pipeline.reporting.tables import MARKS, TEMPLATES
from pipeline.system.atomic import write_json, write_text
from pipeline.system.errors import PipelineError, printable
from pipeline.system.locks import locked
from pipeline.system.reading import read_model

_LEADING = {"forest", "pareto"}
"""Figures shown before the tables."""
_MOST_NUMBERS = 64 * 1024
"""Largest CSV, in bytes, that the page embeds."""
_EMPTY = {"", "-", "–", "—"}


def write_page(report: Report, folder: Path) -> None:
    """Write ``folder/index.html`` with the figures from ``folder/figures``.

    All text is escaped. In addition, a content security policy allows only the hashes of the page's script and style,
    so the browser runs nothing else and loads nothing from anywhere.
    """
    labels = _run_labels(report)
    views = [
        run_view(record, report.curves.get(run), labels.get(run, record.kind)) for run, record in report.records.items()
    ]
    pictures = [_picture(figure, folder / "figures") for figure in report.figures]
    page = TEMPLATES.get_template("index.html").render(
        report=report,
        leading=[picture for picture in pictures if picture["figure"].name in _LEADING],
        others=[picture for picture in pictures if picture["figure"].name not in _LEADING],
        results=_results_table(report),
        usual=usual(views),
        provenance=views,
        written=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    )
    write_text(folder / "index.html", printable(page))


def sort_key(cell: Cell) -> dict[str, str]:
    """The attribute that a sorted table orders a cell by, if the cell's text is not enough."""
    key, shown = _key(cell), _key(Cell(cell.text))
    if key == shown and not (cell.verdict or cell.best):  # the browser sees their marks in the text
        return {}
    if key is None:
        return {"data-text": ""}
    return {"data-text": key} if isinstance(key, str) else {"data-number": f"{key:.7g}"}


def _key(cell: Cell) -> float | str | None:
    if not isinstance(cell.sort, str):
        try:
            number = float(cell.text.replace(",", "").replace("−", "-") if cell.sort is None else cell.sort)
        except ValueError:
            number = math.nan
        if math.isfinite(number):
            return number
        if cell.sort is not None:
            return None
    text = (cell.sort if isinstance(cell.sort, str) else cell.text).strip()
    return None if text in _EMPTY else text


def numeric_columns(table: Table) -> list[bool]:
    """For every column, whether it holds only numbers and gaps, and so is set flush right."""
    columns = range(len(table.columns))
    return [column > 0 and not any(isinstance(_key(row[column]), str) for row in table.rows) for column in columns]


def marked_columns(table: Table) -> list[bool]:
    return [any(row[column].verdict for row in table.rows) for column in range(len(table.columns))]


def _picture(figure: Figure, folder: Path) -> dict[str, Any]:
    """A figure with its image and numbers as data URLs.

    An image in a data URL cannot run scripts or load anything, whatever text it contains.
    """
    svg = (folder / f"{figure.name}.svg").read_bytes()
    numbers = folder / f"{figure.name}.csv"
    box = re.search(rb'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)
    return {
        "figure": figure,
        "image": f"data:image/svg+xml;base64,{_base64(svg)}",
        # The size keeps the layout still while the page loads. Matplotlib has 72 points per inch, CSS 96 pixels.
        "size": [round(float(length) * 4 / 3) for length in box.groups()] if box else None,
        "numbers": f"data:text/csv;base64,{_base64(numbers.read_bytes())}"
        if numbers.is_file() and numbers.stat().st_size <= _MOST_NUMBERS
        else None,
    }


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _run_labels(report: Report) -> dict[str, str]:
    """The study rows in which every run appears."""
    labels: dict[str, dict[str, None]] = {}
    for run, line in zip(report.results["run"], report.results["method"], strict=True):
        labels.setdefault(run, {})[report.study.title(line.row, line.source)] = None
    return {run: "; ".join(titles) for run, titles in labels.items()}


def _results_table(report: Report) -> Table:
    columns = tuple(str(column).replace("_", " ") for column in report.results)
    rows = tuple(
        tuple(_result_cell(report, str(name), value) for name, value in row.items())
        for row in report.results.to_dict("records")
    )
    return Table("results", "Runs", columns, rows)


def _result_cell(report: Report, column: str, value: Any) -> Cell:
    if isinstance(value, Line):
        return Cell(report.study.title(value.row, value.source))
    if pd.isna(value):
        return Cell("-")
    # A seed is a name, not a quantity, so it has no thousands separator.
    text = str(value) if column == "seed" else value_text(value, 4 if column == "value" else None)
    sort = value if isinstance(value, str) else float(value)
    return Cell(text, sort, (value,) if column == "run" else ())


SUMMARY = "summary.json"


class Summary(BaseModel):
    """A study's entry in the overview, stored as ``summary.json`` beside its page."""

    model_config = ConfigDict(frozen=True)

    name: str
    description: str
    finished: str
    """When its last run finished, as an ISO date and time; empty without runs."""
    verdict: str
    """The first sentence of its findings."""
    runs: int
    missing: int


def write_overview(report: Report, folder: Path) -> None:
    """Write ``summary.json`` into a study's ``folder``, and ``index.html`` over all studies into the folder above.

    A study without a readable summary gets only a link.
    """
    summary = Summary(
        name=report.study.name,
        description=report.study.description,
        finished=max((record.finished_at for record in report.records.values()), default=""),
        verdict=next(iter(report.verdict), ""),
        runs=len(report.records),
        missing=len(report.missing),
    )
    write_json(folder / SUMMARY, summary.model_dump())
    # If two studies end at once, the lock ensures that the last writer has read both.
    with locked(folder.parent / ".overview.lock"):
        studies = {page.parent.name: _read(page.parent) for page in sorted(folder.parent.glob("*/index.html"))}
        names = sorted(studies, key=lambda name: study.finished if (study := studies[name]) else "", reverse=True)
        page = TEMPLATES.get_template("overview.html").render(studies={name: studies[name] for name in names})
        write_text(folder.parent / "index.html", printable(page))


def _read(folder: Path) -> Summary | None:
    try:
        return read_model(Summary, folder / SUMMARY, "report the study again")
    except PipelineError:
        return None


TEMPLATES.globals |= {
    "marks": {verdict: mark for verdict, mark in MARKS.items() if verdict is not None},
    "numeric_columns": numeric_columns,
    "marked_columns": marked_columns,
    "sort_key": sort_key,
    "value_text": value_text,
}
