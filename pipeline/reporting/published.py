"""Published numbers beside ours, and what differs between the two settings."""

import csv
import statistics
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

from pipeline.reporting.cells import difference_cell, group_cell
from pipeline.reporting.report import Cell, Table
from pipeline.reporting.runs import StudyRuns
from pipeline.reporting.text import MISSING, backbone_text, count, number
from pipeline.settings.rows import Published
from pipeline.settings.study import Study
from pipeline.system.errors import PipelineError
from pipeline.system.reading import read_toml

FILE = Path(__file__).with_name("published.csv")
SETTINGS = read_toml(FILE.with_suffix(".toml"))


class Value(NamedTuple):
    """A cell of a published table."""

    table: str
    row: str
    metric: str
    value: float | None
    """A fraction; None where the report's cell is empty or cannot be read."""
    flag: str


@cache
def _tables() -> dict[tuple[str, str, str], list[Value]]:
    """The cells of every table by report, table and split, in their order."""
    tables: dict[tuple[str, str, str], list[Value]] = {}
    with FILE.open(encoding="utf-8", newline="") as file:
        for report, table, split, row, metric, value, flag in list(csv.reader(file))[1:]:
            known = float(value) / (100 if SETTINGS[report]["percent"] else 1) if value else None
            tables.setdefault((report, table, split), []).append(Value(table, row, metric, known, flag))
    return tables


def published_values(source: Published) -> list[Value]:
    """The cells of published tables, in their order.

    Raises:
        PipelineError: there is no such table.
    """
    tables, places = _tables(), [(source.report, table, source.split) for table in source.tables]
    for place in places:
        if place not in tables:
            known = "; ".join(sorted(f"{report}, {table} ({split})" for report, table, split in tables))
            wanted = f"'{place[1]}' ({source.split}) of '{source.report}'"
            raise PipelineError(f"published: no table {wanted}: there are {known}")
    return [value for place in places for value in tables[place]]


def published_mistakes(study: Study) -> list[str]:
    """The rows and columns that a study names and its published table lacks."""
    source = study.published
    if source is None:
        return []
    try:
        values = published_values(source)
    except PipelineError as error:
        return [str(error)]
    rows, columns = sorted({v.row for v in values}), sorted({v.metric for v in values})
    named: dict[str, None] = {}
    for name in study.methods:
        own = study.row(name).published
        named |= dict.fromkeys(own.values() if isinstance(own, dict) else study.published_names(name))
    where = f"in {source.report}, {', '.join(source.tables)} ({source.split}): there are"
    return [
        *(f"published: no row '{row}' {where} {', '.join(rows)}" for row in named if row not in rows),
        *(f"published.tasks: no column '{c}' {where} {', '.join(columns)}" for c in source.tasks if c not in columns),
    ]


def _tasks(runs: StudyRuns, source: Published) -> dict[str, list[str]]:
    """The published columns of each target: tables of one report may call a task's column by several names."""
    return {
        task: [metric for metric, named in source.tasks.items() if named == task]
        for task in dict.fromkeys(source.tasks.values())
        if task in runs.study.targets
    }


def published_table(runs: StudyRuns) -> Table | None:
    """The published tables beside ours; None where the study names none."""
    source = runs.study.published
    if source is None:
        return None
    values, tasks = published_values(source), _tasks(runs, source)
    lines = {name: line for line in runs.lines for name in runs.study.published_names(line.row, line.source)}
    rows = []
    for table, name in dict.fromkeys((value.table, value.row) for value in values):
        cells = [Cell(table), Cell(name)]
        for task, metrics in tasks.items():
            theirs = next((v for v in values if (v.table, v.row) == (table, name) and v.metric in metrics), None)
            known, flag = (theirs.value, theirs.flag) if theirs else (None, "")
            group = runs.cell(lines[name], task) if name in lines else []
            difference = statistics.mean(s.value for s in group) - known if group and known is not None else None
            cells += [Cell(number(known), known, detail=flag), group_cell(group), difference_cell(difference)]
        rows.append(tuple(cells))
    columns = ["table", "method"]
    for task in tasks:
        columns += [f"{task}, {source.report}", f"{task}, ours", "points"]
    first = 0 if len(source.tables) > 1 else 1
    shown = Table.named(
        "published", columns[first:], [row[first:] for row in rows],
        report=source.report, tables=", ".join(source.tables), split=source.split,
    )  # fmt: skip
    flags = dict.fromkeys(f"{value.row}: {value.flag}" for value in values if value.flag)
    return replace(shown, notes=(*shown.notes, *flags))


def published_settings_table(runs: StudyRuns) -> Table | None:
    """The published setting beside ours; None where the study names no published table."""
    source = runs.study.published
    if source is None:
        return None
    setting = SETTINGS[source.report]
    rows = [
        ("backbone", setting["backbone"], backbone_text(runs.result.backbone)),
        ("seeds", setting["seeds"], str(len(runs.study.seeds))),
    ]
    for task in _tasks(runs, source):
        scores = [scored.score for scored in runs.scored if scored.entry.target == task and scored.entry.rows is None]
        theirs = setting["rows"].get(task, (None, None))
        for part, known, ours in (
            ("training", theirs[0], {score.train_rows for score in scores}),
            ("scored", theirs[1], {score.scored_rows for score in scores}),
        ):
            shown = " / ".join(map(count, sorted(ours))) or MISSING
            rows.append((f"{task}, {part} rows", count(known), shown))
    columns = ("setting", source.report, "ours")
    return Table.named("published-setting", columns, (tuple(map(Cell, row)) for row in rows))
