"""The numbers of published tables as the reports print them."""

import csv
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.settings.sections import Published
from pipeline.settings.study import Study
from pipeline.system.errors import PipelineError
from pipeline.system.reading import read_toml

FOLDER = Path(__file__).parent
REPORTS: dict[str, Any] = read_toml(FOLDER / "reports.toml")

KEPT, PARAMETERS, SETTING = "", "parameters", "setting"


class Value(NamedTuple):
    """A cell of a published table."""

    table: str
    row: str
    metric: str
    value: float | None
    """A fraction; None where the report's cell is empty or cannot be read."""
    flag: str


class Absent(NamedTuple):
    """A row of a published table that no study has, or that differs in one, and why."""

    report: str
    table: str
    split: str
    row: str
    """Empty: all rows of the table."""
    why: str


def read(name: str) -> list[list[str]]:
    """The lines of a CSV file of this folder, without its heads."""
    with (FOLDER / name).open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))[1:]


def pairs(text: str) -> list[tuple[str, str]]:
    """``key=value; key=value``, split."""
    return [(key, value) for key, _, value in (part.partition("=") for part in text.split("; "))]


@cache
def tables() -> dict[tuple[str, str, str], list[Value]]:
    """The cells of every table by report, table and split, in their order."""
    cells: dict[tuple[str, str, str], list[Value]] = {}
    for report, table, split, row, values, flag in read("values.csv"):
        for metric, value in pairs(values):
            whole = statistic_of(report, metric) in (PARAMETERS, SETTING) or metric == "train_loss"
            scale = 100 if REPORTS[report]["percent"] and not whole else 1
            cell = Value(table, row, metric, float(value) / scale if value else None, flag)
            cells.setdefault((report, table, split), []).append(cell)
    return cells


@cache
def absent_rows() -> tuple[Absent, ...]:
    """What the studies leave out, with the reasons."""
    return tuple(Absent(*line) for line in read("absent.csv"))


def statistic_of(report: str, metric: str) -> str:
    """What a column holds; empty: the score of a task at the kept epoch, the mean over seeds."""
    return REPORTS[report].get("columns", {}).get(metric, KEPT)


def published_values(source: Published) -> list[Value]:
    """The cells of published tables, in their order.

    Raises:
        PipelineError: there is no such table.
    """
    there, places = tables(), [(source.report, table, source.split) for table in source.tables]
    for place in places:
        if place not in there:
            known = "; ".join(sorted(f"{report}, {table} ({split})" for report, table, split in there))
            wanted = f"'{place[1]}' ({source.split}) of '{source.report}'"
            raise PipelineError(f"published: no table {wanted}: there are {known}")
    return [value for place in places for value in there[place]]


def published_epochs(report: str, table: str) -> dict[str, dict[str, float | None]]:
    """The rows of a published table of epochs by column; none where there is no such table."""
    epochs: dict[str, dict[str, float | None]] = {}
    for value in tables().get((report, table, "train/dev"), []):
        epochs.setdefault(value.row, {})[value.metric] = value.value
    return epochs


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
    asked = dict.fromkeys(source.tasks)
    for name in study.methods:
        row = study.row(name)
        called = row.published.values() if isinstance(row.published, dict) else study.published_names(name)
        named |= dict.fromkeys(called)
        asked |= dict.fromkeys(row.published_columns or ())
    where = f"in {source.report}, {', '.join(source.tables)} ({source.split}): there are"
    return [
        *(f"published: no row '{row}' {where} {', '.join(rows)}" for row in named if row not in rows),
        *(f"published.tasks: no column '{c}' {where} {', '.join(columns)}" for c in asked if c not in columns),
        *(
            f"published.curves: no table of epochs '{table}' of '{source.report}'"
            for table in source.curves
            if not published_epochs(source.report, table)
        ),
        *(
            f"published.curves.{table}: the study has no row '{curve.row}' on {curve.task}"
            for table, curve in source.curves.items()
            if curve.row not in study.methods or curve.task not in study.targets_of(curve.row)
        ),
    ]
