"""index.html of a study: one file that loads nothing and runs nothing but its own script."""

import base64
import hashlib
import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from pipeline.reporting.entries import Line
from pipeline.reporting.provenance import number_text, run_view
from pipeline.reporting.report import Cell, Figure, Report, Table
from pipeline.reporting.tables import MARKS
from pipeline.system.atomic import write_text
from pipeline.system.errors import printable

_TEMPLATES = Path(__file__).with_name("templates")
_EMPTY = {"", "-", "–", "—"}
_WIDE = 640  # CSS pixels: in half the page's width the letters of a wider picture would be too small


def write_page(report: Report, folder: Path) -> None:
    """Write ``folder/index.html``, with the figures that stand in ``folder/figures``.

    Every text is escaped; beyond that, a content security policy names the hash of the page's own script and style, so
    that the browser itself runs no other and loads nothing from anywhere.
    """
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {
        "marks": {verdict: mark for verdict, mark in MARKS.items() if verdict is not None},
        "numeric_columns": numeric_columns,
        "marked_columns": marked_columns,
        "sort_key": sort_key,
    }
    # Our own, which must not be escaped.
    style, script = ((_TEMPLATES / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    labels = _run_labels(report)
    page = environment.get_template("index.html").render(
        report=report,
        facts=_facts(report),
        pictures=[_picture(figure, folder / "figures") for figure in report.figures],
        results=_results_table(report),
        provenance=[
            run_view(record, report.curves.get(run), labels.get(run, record.kind))
            for run, record in report.records.items()
        ],
        style=Markup(style),
        script=Markup(script),
        policy=_policy(style, script),
        written=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    )
    write_text(folder / "index.html", printable(page))


def sort_key(cell: Cell) -> dict[str, str]:
    """The attribute that a sorted table orders a cell by; none for a cell without a value."""
    number = _number(cell)
    if number is not None:
        return {"data-number": repr(number)}
    if isinstance(cell.sort, float | int):
        return {}  # not a number, or without end
    text = cell.text if cell.sort is None else cell.sort
    return {} if text.strip() in _EMPTY else {"data-text": text}


def numeric_columns(table: Table) -> list[bool]:
    """Whether each column holds numbers, and perhaps holes, so that it is set flush right."""
    kinds = [[next(iter(sort_key(row[column])), None) for row in table.rows] for column in range(len(table.columns))]
    return [column > 0 and "data-text" not in own for column, own in enumerate(kinds)]


def marked_columns(table: Table) -> list[bool]:
    return [any(row[column].verdict for row in table.rows) for column in range(len(table.columns))]


@dataclass(frozen=True)
class Picture:
    """A figure as the page holds it."""

    figure: Figure
    image: str
    """As a data address: whatever text stands in it, a picture cannot run scripts or load anything."""
    size: tuple[int, int] | None
    """Width and height in CSS pixels, so that nothing moves while the page loads."""
    wide: bool
    numbers: str | None
    """The figure's CSV as a data address."""


def _picture(figure: Figure, folder: Path) -> Picture:
    svg = (folder / f"{figure.name}.svg").read_bytes()
    numbers = folder / f"{figure.name}.csv"
    box = re.search(rb'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)
    # Matplotlib's units are points, 72 an inch; CSS has 96 pixels an inch.
    size = (round(float(box[1]) * 4 / 3), round(float(box[2]) * 4 / 3)) if box else None
    return Picture(
        figure,
        _data_address("image/svg+xml", svg),
        size,
        size is not None and size[0] > _WIDE,
        _data_address("text/csv", numbers.read_bytes()) if numbers.is_file() else None,
    )


def _data_address(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def _policy(style: str, script: str) -> str:
    hashes = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (style, script))
    style_hash, script_hash = hashes
    return (
        f"default-src 'none'; style-src 'sha256-{style_hash}'; script-src 'sha256-{script_hash}';"
        " img-src data:; base-uri 'none'; form-action 'none'"
    )


def _facts(report: Report) -> list[tuple[str, str]]:
    """What was compared, in a line under the title."""
    study = report.study
    rows = "all" if study.limit is None else f"{study.limit:,} a task"
    if study.target_limit is not None:
        rows += f", {study.target_limit:,} of the target"
    facts = [
        ("Backbone", report.backbone),
        ("Targets", ", ".join(study.targets)),
        ("Sources beside them", ", ".join(study.sources)),
        ("Training rows", rows),
        ("Dev rows", f"at most {study.dev_limit:,} a task" if study.dev_limit else ""),
        ("Seeds", ", ".join(map(str, study.seeds))),
        ("Compared with", study.title(study.reference)),
        ("Finished runs", f"{len(report.records):,}"),
    ]
    return [(name, value) for name, value in facts if value]


def _run_labels(report: Report) -> dict[str, str]:
    """The rows of the study that a run stands in."""
    labels: dict[str, dict[str, None]] = {}
    for run, line in zip(report.results["run"], report.results["method"], strict=True):
        labels.setdefault(run, {})[report.study.title(line.row, line.source)] = None
    return {run: ", ".join(titles) for run, titles in labels.items()}


def _results_table(report: Report) -> Table:
    results = report.results
    columns = tuple(str(column).replace("_", " ") for column in results.columns)
    rows = tuple(
        tuple(_result_cell(report, str(name), value) for name, value in zip(results.columns, row, strict=True))
        for row in results.itertuples(index=False, name=None)
    )
    return Table("results", "Runs", columns, rows)


def _result_cell(report: Report, column: str, value: Any) -> Cell:
    if value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value)):
        return Cell("-")
    if column == "run":
        return Cell(value, runs=(value,), sort=value)
    if isinstance(value, Line):
        return Cell(report.study.title(value.row, value.source))
    if isinstance(value, str):
        return Cell(value, sort=value)
    digits = 4 if column == "value" else None
    # A seed is a name, not a quantity: no thousands separator.
    return Cell(str(value) if column == "seed" else number_text(value, digits), sort=float(value))


def _number(cell: Cell) -> float | None:
    """What a cell counts as: its sort key, or its text where that is a plain number."""
    if isinstance(cell.sort, str):
        return None
    try:
        number = float(cell.sort if cell.sort is not None else cell.text.replace(",", "").replace("−", "-"))
    except ValueError:
        return None
    return number if math.isfinite(number) else None
