"""index.html of a study: one file, no network."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined

from pipeline.atomic import write_text
from pipeline.ledger import Ledger
from pipeline.reporting.entries import StudyResult, Summary
from pipeline.reporting.tables import MARKS, header, method_text, table_cells


def write_page(result: StudyResult, results: pd.DataFrame, summary: Summary, ledger: Ledger, folder: Path) -> None:
    """Write the page: the main table, the figure, and every run with its recipe and provenance."""
    environment = Environment(
        loader=PackageLoader("pipeline.reporting"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters["method"] = method_text
    records = {run: record for run in results["run"] if (record := ledger.find(run)) is not None}
    svg = (folder / "figures" / "scores.svg").read_bytes()
    page = environment.get_template("index.html").render(
        study=result.study,
        backbone=result.backbone,
        header=header(summary),
        rows=[table_cells(row, summary.targets, "±", MARKS) for row in summary.rows],
        notes=summary.notes,
        reference=summary.reference,
        results=results.to_dict("records"),
        records=records,
        # As an image: a picture cannot run scripts or load anything, whatever text stands in it.
        figure="data:image/svg+xml;base64," + base64.b64encode(svg).decode(),
        written=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    )
    write_text(folder / "index.html", page)
