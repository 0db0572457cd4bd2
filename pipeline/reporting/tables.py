"""results.csv, tables.md, tables.tex and tables/*.csv of a report."""

import base64
import hashlib
from pathlib import Path

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

from pipeline.data.tables import write_table
from pipeline.records.run_record import Cost
from pipeline.reporting.effort import stored
from pipeline.reporting.report import Cell, Report, Table
from pipeline.reporting.runs import StudyRuns
from pipeline.system.atomic import new_folder, write_text
from pipeline.system.errors import printable

TABLES = "tables.md"
"""File with all tables of a report, for people to read."""

MARKS: dict[str | None, str] = {"better": "↑", "worse": "↓", "not significant": "→", None: ""}
_TEX_SIGNS = {"±": r"$\pm$", "↑": r"$\uparrow$", "↓": r"$\downarrow$", "→": r"$\rightarrow$", "−": "$-$"}
_TEX_WORDS = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_TEX = str.maketrans({character: f"\\{character}" for character in "&%$#_{}"} | _TEX_WORDS | _TEX_SIGNS)


def marked(cell: Cell) -> str:
    """The cell's text with its verdict's arrow."""
    return f"{cell.text} {MARKS[cell.verdict]}".strip()


def _in_markdown(cell: Cell) -> str:
    text = _flat(marked(cell)).replace("|", r"\|")
    return f"**{text}**" if cell.best else text


def _in_latex(cell: Cell) -> str:
    text = _flat(marked(cell)).translate(_TEX)
    return rf"\textbf{{{text}}}" if cell.best else text


def write_tables(report: Report, folder: Path) -> None:
    """Write the results in tidy form, and every table as Markdown, LaTeX (booktabs) and CSV."""
    write_table(report.results, folder / "results.csv")
    write_text(folder / TABLES, printable(markdown(report)))
    write_text(folder / "tables.tex", printable(latex(report)))
    with new_folder(folder / "tables") as fresh:
        for table in report.tables:
            write_table(plain_table(table), fresh / f"{table.name}.csv")


def verdict_and_scores(folder: Path) -> str:
    """The beginning of a report's :data:`TABLES`: the study's findings and the table of scores."""
    parts = (folder / TABLES).read_text(encoding="utf-8").split("\n## ")
    return "\n## ".join(parts[:2]).rstrip()


def results_table(runs: StudyRuns) -> pd.DataFrame:
    """A row per finished cell: first the main table's runs, then the curve's, with fewer ``train_rows`` of the target.

    ``method`` holds the :class:`Line`. ``stored_parameters`` counts what must be kept to answer this target.
    ``seconds`` includes the row's trials with this seed, and ``total_seconds`` also the runs that it builds on.
    ``trials`` is the number of runs on the target that the row is chosen from, with the trials of rows that it takes.
    """
    group = sorted(runs.scored, key=lambda scored: scored.entry.rows is not None)
    return pd.DataFrame(
        {
            "method": [scored.entry.line for scored in group],
            "target": [scored.entry.target for scored in group],
            "seed": [scored.entry.seed for scored in group],
            "split": ["dev" if scored.score.test is None else "test" for scored in group],
            "metric": [scored.score.metric for scored in group],
            "value": [scored.value for scored in group],
            **{name: [getattr(scored.record.cost, name) for scored in group] for name in Cost.model_fields},
            "seconds": [scored.seconds for scored in group],
            "run": [scored.record.run for scored in group],
            # Int64 keeps whole numbers whole next to empty fields.
            "train_rows": pd.array([runs.train_rows(scored) or None for scored in group], "Int64"),
            "stored_parameters": pd.array([stored([scored.record], runs.ledger) for scored in group], "Int64"),
            "total_seconds": [scored.entry.total_seconds for scored in group],
            "trials": [runs.study.trials_on_target(scored.entry.line.row) for scored in group],
            "precision": [scored.record.recipe.precision for scored in group],
            "hardware": [scored.record.hardware for scored in group],
        }
    )


def plain_table(table: Table) -> pd.DataFrame:
    """The cells as text; a column with verdicts is followed by one with the verdicts in words and their small print."""
    columns: list[tuple[str, list[str]]] = []
    for index, name in enumerate(table.columns):
        cells = [row[index] for row in table.rows]
        columns.append((name, [cell.text for cell in cells]))
        if any(cell.verdict for cell in cells):
            columns.append((f"{name}, verdict", [cell.verdict or "" for cell in cells]))
            columns.append((f"{name}, test", [cell.detail for cell in cells]))
    # Column names may repeat, so this is a list and not a dictionary.
    data = pd.DataFrame([values for _, values in columns]).T
    data.columns = pd.Index([name for name, _ in columns])
    return data


def markdown(report: Report) -> str:
    return TEMPLATES.get_template("tables.md").render(report=report)


def latex(report: Report) -> str:
    return TEMPLATES.get_template("tables.tex").render(report=report)


def _flat(text: str) -> str:
    """``text`` on one line: a line break would end the table row or start something else."""
    return " ".join(text.split())


TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).with_name("templates")),
    autoescape=select_autoescape(["html"]),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
TEMPLATES.filters |= {
    "markdown_cell": _in_markdown,
    "latex_cell": _in_latex,
    "flat": _flat,
    "sha256": lambda text: base64.b64encode(hashlib.sha256(text.encode()).digest()).decode(),
    "markdown": lambda text: _flat(text).replace("|", r"\|"),
    "latex": lambda text: _flat(text).translate(_TEX),
}
