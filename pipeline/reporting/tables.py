"""results.csv, tables.md and tables.tex of a study."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd

from pipeline.atomic import write_text
from pipeline.data.tables import write_table
from pipeline.reporting.entries import MethodRow, Summary, score_text

MARKS: dict[str | None, str] = {"better": "↑", "worse": "↓", "no difference seen": "→", None: ""}
_TEX_MARKS: dict[str | None, str] = {
    "better": r"$\uparrow$",
    "worse": r"$\downarrow$",
    "no difference seen": r"$\rightarrow$",
    None: "",
}
_TEX_ESCAPES = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
}
_LEGEND = "↑ better, ↓ worse, → no difference seen"


def header(summary: Summary) -> list[str]:
    scores = [f"{target} ({summary.metrics.get(target, '-')})" for target in summary.targets]
    return [
        "method",
        *scores,
        "overall",
        "overall, (r+1)/2",
        "trainable parameters",
        "seconds",
        "with sources",
        "peak memory, MB",
        "epochs",
    ]


def table_cells(row: MethodRow, targets: tuple[str, ...], spread: str, marks: dict[str | None, str]) -> list[str]:
    """A row of the main table as text, in the order of :func:`header`."""
    scores = [
        f"{score_text(score, spread)} {marks[score.verdict]}".strip() if (score := row.scores.get(target)) else "-"
        for target in targets
    ]
    return [
        method_text(row.method),
        *scores,
        _number(row.overall_plain),
        _number(row.overall_normalised),
        f"{row.trainable_parameters:,.0f}",
        f"{row.seconds:.0f}",
        f"{row.total_seconds:.0f}",
        f"{row.peak_memory_mb:.0f}",
        row.epochs,
    ]


def method_text(method: str) -> str:
    """``sequential:sst`` as a reader says it."""
    name, _, source = method.partition(":")
    return f"{name}, from {source}" if source else name


def write_tables(results: pd.DataFrame, summary: Summary, folder: Path) -> None:
    """Write the tidy results and the main table in Markdown and LaTeX (booktabs)."""
    write_table(results, folder / "results.csv")
    write_text(folder / "tables.md", markdown(summary))
    write_text(folder / "tables.tex", latex(summary))


def markdown(summary: Summary) -> str:
    columns = header(summary)
    lines = [_markdown_row(columns), "| --- |" + " ---: |" * (len(columns) - 1)]
    lines += [_markdown_row(table_cells(row, summary.targets, "±", MARKS)) for row in summary.rows]
    notes = [f"- {note}" for note in (f"{_LEGEND} (against {summary.reference}).", *summary.notes)]
    return "\n".join([*lines, "", *notes]) + "\n"


def _markdown_row(cells: list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


def latex(summary: Summary) -> str:
    columns = header(summary)
    lines = [
        "% needs \\usepackage{booktabs}",
        f"\\begin{{tabular}}{{l{'r' * (len(columns) - 1)}}}",
        "\\toprule",
        " & ".join(_escape(column) for column in columns) + r" \\",
        "\\midrule",
    ]
    for row in summary.rows:
        plain = table_cells(row, summary.targets, "@pm@", {key: f"@{key}@" if key else "" for key in _TEX_MARKS})
        cells = [_escape(cell).replace("@pm@", r"$\pm$") for cell in plain]
        for verdict, mark in _TEX_MARKS.items():
            cells = [cell.replace(f"@{verdict}@", mark) for cell in cells]
        lines.append(" & ".join(cells) + r" \\")
    lines += ["\\bottomrule", "\\end{tabular}"]
    return "\n".join(lines) + "\n"


def _escape(text: str) -> str:
    return re.sub(r"[\\&%$#_{}~^]", lambda match: _TEX_ESCAPES[match.group()], text)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
