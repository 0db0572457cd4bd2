"""results.csv, tables.md, tables.tex and tables/*.csv of a report."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from pipeline.data.tables import write_table
from pipeline.reporting.report import Cell, Report, Table
from pipeline.system.atomic import new_folder, write_text
from pipeline.system.errors import printable

MARKS: dict[str | None, str] = {"better": "↑", "worse": "↓", "not significant": "→", None: ""}
_TEX_SIGNS = {"±": r"$\pm$", "↑": r"$\uparrow$", "↓": r"$\downarrow$", "→": r"$\rightarrow$", "−": "$-$"}
_TEX_WORDS = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_TEX = str.maketrans({character: f"\\{character}" for character in "&%$#_{}"} | _TEX_WORDS | _TEX_SIGNS)


def marked(cell: Cell) -> str:
    """The cell's text with the arrow of its verdict."""
    return f"{cell.text} {MARKS[cell.verdict]}".strip()


def write_tables(report: Report, folder: Path) -> None:
    """Write the tidy results, and every table in Markdown, LaTeX (booktabs) and CSV."""
    write_table(report.results, folder / "results.csv")
    write_text(folder / "tables.md", printable(markdown(report)))
    write_text(folder / "tables.tex", printable(latex(report)))
    with new_folder(folder / "tables") as fresh:
        for table in report.tables:
            write_table(plain_table(table), fresh / f"{table.name}.csv")


def plain_table(table: Table) -> pd.DataFrame:
    """The cells as text, and beside each column with verdicts one that holds them in words with their small print."""
    columns: list[tuple[str, list[str]]] = []
    for index, name in enumerate(table.columns):
        cells = [row[index] for row in table.rows]
        columns.append((name, [cell.text for cell in cells]))
        if any(cell.verdict for cell in cells):
            columns.append((f"{name}, verdict", [cell.verdict or "" for cell in cells]))
            columns.append((f"{name}, test", [cell.detail for cell in cells]))
    # A list of columns, not a dictionary: a column's name may stand twice.
    data = pd.DataFrame([values for _, values in columns]).T
    data.columns = pd.Index([name for name, _ in columns])
    return data


def markdown(report: Report) -> str:
    blocks = [f"# {_flat(report.study.name)}"]
    blocks += [_bullets(report.summary)] if report.summary else []
    for table in report.tables:
        blocks += [f"## {_flat(table.title)}", _markdown_table(table)]
        blocks += [_bullets(table.notes)] if table.notes else []
    notes = [*report.notes, *(f"Missing: {reason}" for reason in report.missing)]
    blocks += ["## Notes", _bullets(notes)] if notes else []
    return "\n\n".join(blocks) + "\n"


def latex(report: Report) -> str:
    return "\n".join(["% needs \\usepackage{booktabs}", *(_latex_table(table) for table in report.tables)])


def _markdown_table(table: Table) -> str:
    lines = [_markdown_row(table.columns), "| --- |" + " ---: |" * (len(table.columns) - 1)]
    return "\n".join([*lines, *(_markdown_row([marked(cell) for cell in row]) for row in table.rows)])


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(_flat(cell).replace("|", r"\|") for cell in cells) + " |"


def _bullets(texts: Sequence[str]) -> str:
    return "\n".join(f"- {_flat(text)}" for text in texts)


def _flat(text: str) -> str:
    """On one line: a line break would end the row, or begin something that is no longer this text."""
    return " ".join(text.split())


def _latex_table(table: Table) -> str:
    lines = [
        f"\n% {_flat(table.title)}",
        f"\\begin{{tabular}}{{l{'r' * (len(table.columns) - 1)}}}",
        "\\toprule",
        " & ".join(_escape(column) for column in table.columns) + r" \\",
        "\\midrule",
        *(" & ".join(_escape(marked(cell)) for cell in row) + r" \\" for row in table.rows),
        "\\bottomrule",
        "\\end{tabular}\n",
    ]
    return "\n".join(lines)


def _escape(text: str) -> str:
    return _flat(text).translate(_TEX)
