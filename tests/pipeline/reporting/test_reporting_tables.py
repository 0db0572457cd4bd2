"""Every table in Markdown, LaTeX and CSV: the same cells, each one cell whatever stands in it."""

import re
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from pipeline.reporting.build import TEMPLATES, marked, write_tables
from pipeline.reporting.report import Cell, Report, Table
from pipeline.reporting.runs import StudyRuns

TEX_SPECIAL = r"a&b %c $d #e _f {g} ~h ^i \j"
MARKDOWN, LATEX = map(TEMPLATES.get_template, ("tables.md", "tables.tex"))


def split_markdown(line: str) -> list[str]:
    """The cells of a table row: only pipes without a backslash before them part cells."""
    assert line.startswith("| ")
    assert line.endswith(" |")
    return [cell.strip().replace(r"\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


SIGNS = {r"$\pm$": "±", r"$\uparrow$": "↑", r"$\downarrow$": "↓", r"$\rightarrow$": "→", "$-$": "−"}
"""What LaTeX prints of these."""


def tables_of(text: str) -> list[tuple[list[str], list[list[str]]]]:
    """The header and the rows of every table in a Markdown text."""
    found = []
    for block in text.split("\n\n"):
        if block.startswith("|"):
            head, rule, *rows = [split_markdown(line) for line in block.splitlines()]
            assert rule == ["---", *["---:"] * (len(head) - 1)]
            found.append((head, rows))
    return found


def with_table(report: Report, *cells: Cell) -> Report:
    """The report with one table of one row."""
    columns = tuple(f"column {number}" for number in range(len(cells)))
    return replace(
        report, tables=(Table("only", "Only", columns, (cells,)),), verdict=(), summary=(), notes=(), missing=()
    )


def printed(text: str) -> str:
    """What LaTeX prints of ``text``, which must hold no special character that is not escaped."""
    words = {"textbackslash": "\\", "textasciitilde": "~", "textasciicircum": "^"}
    escaped = re.compile(r"\\(?:([&%$#_{}])|(text\w+)\{\})")
    assert not set(escaped.sub("", text)) & set(r"&%$#_{}~^" + "\\"), text
    return escaped.sub(lambda found: found[1] or words[found[2]], text)


def test_the_results_have_exactly_the_promised_columns_and_one_row_a_finished_cell(
    report: Report, runs: StudyRuns, tmp_path: Path
) -> None:
    write_tables(report, tmp_path)
    written = pd.read_csv(tmp_path / "results.csv")
    assert list(written) == [
        "method", "target", "seed", "split", "metric", "value", "trainable_parameters", "seconds",
        "examples_per_second", "peak_memory_mb", "run", "train_rows", "stored_parameters", "total_seconds",
        "trials", "precision", "hardware",
    ]  # fmt: skip
    assert len(written) == len(runs.scored)
    found = {(s.entry.method, s.entry.target, s.entry.seed, s.score.train_rows): s for s in runs.scored}
    for line in written.to_dict("records"):
        scored = found.pop((line["method"], line["target"], line["seed"], line["train_rows"]))
        assert line["run"] == scored.record.run
        assert line["value"] == pytest.approx(scored.value, abs=1e-12)
        assert line["metric"] == ("accuracy" if line["target"] == "sst" else "pearson")
    assert not found
    assert set(written["train_rows"]) == {100, 1000}


def test_markdown_holds_every_table_summary_and_note(report: Report) -> None:
    text = MARKDOWN.render(report=report)
    tables = tables_of(text)
    assert [head for head, _ in tables] == [list(table.columns) for table in report.tables]
    for (_, rows), table in zip(tables, report.tables, strict=True):
        assert rows == [[f"**{marked(cell)}**" if cell.best else marked(cell) for cell in row] for row in table.rows]
    assert " ".join(report.verdict) in text
    missing = [f"Missing: {reason}" for reason in report.missing]
    for said in (*report.summary, *report.notes, *missing, *(note for table in report.tables for note in table.notes)):
        assert f"- {said}" in text


def test_markdown_and_latex_hold_the_same_cells(report: Report) -> None:
    lines = [line.removesuffix(r" \\") for line in LATEX.render(report=report).splitlines() if line.endswith(r" \\")]
    rows = [row for head, rows in tables_of(MARKDOWN.render(report=report)) for row in (head, *rows)]
    for cells, line in zip(rows, lines, strict=True):
        for sign, plain in SIGNS.items():
            line = line.replace(sign, plain)
        line = re.sub(r"\\textbf\{([^{}]*)\}", r"**\1**", line)
        assert [printed(cell) for cell in re.split(r" (?<!\\)& ", line)] == cells


def test_every_table_has_a_csv_with_its_verdicts_in_words(report: Report, tmp_path: Path) -> None:
    write_tables(report, tmp_path)
    assert {file.stem for file in (tmp_path / "tables").iterdir()} == {table.name for table in report.tables}
    main = pd.read_csv(tmp_path / "tables" / "main.csv")
    assert main["method"].tolist()[-1] == "fusion"
    assert main["sst (accuracy), verdict"].tolist()[-1] == "better"
    assert "95 % CI" in main["sst (accuracy), test"].tolist()[-1]
    assert "epochs, verdict" not in main


@pytest.mark.parametrize("hostile", ["a|b", "||", r"a\|b", TEX_SPECIAL, "@x@", "<b>", "`code`"])
def test_a_hostile_text_stays_one_cell_of_a_markdown_table(hostile: str, report: Report) -> None:
    ((head, rows),) = tables_of(
        MARKDOWN.render(report=with_table(report, Cell(hostile), Cell("0.5", verdict="better")))
    )
    assert len(head) == len(rows[0]) == 2
    assert rows[0][1] == "0.5 ↑"
    if "\\" not in hostile:
        assert rows[0][0] == hostile


@pytest.mark.parametrize("hostile", ["a&b", "50% of $5", "a_b", "#1 {x}", "~^", "\\", r"\\ \end{tabular}", TEX_SPECIAL])
def test_a_hostile_text_stays_text_in_latex(hostile: str, report: Report) -> None:
    lines = LATEX.render(report=with_table(report, Cell(hostile), Cell("0.5 ± 0.1", verdict="worse"))).splitlines()
    assert lines[-1] == r"\end{tabular}"
    _, cells = (re.split(r" (?<!\\)& ", line.removesuffix(r" \\")) for line in lines if line.endswith(r" \\"))
    assert printed(cells[0]) == hostile
    assert cells[1] == r"0.5 $\pm$ 0.1 $\downarrow$"
