"""What published tables print, and what the reports say of how their rows were trained."""

import csv
import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.settings.study import Published, Study
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


class Setting(NamedTuple):
    """A setting of published rows. A later one of the file overrides an earlier one that holds for the same row."""

    report: str
    table: str
    """Empty: all tables of the report."""
    row: str
    """Empty: all rows of the table."""
    task: str
    """Empty: all tasks."""
    key: str
    """A flat key of a recipe, ``method``, or ``optimizer``."""
    value: Any
    """``?`` where the report does not say."""


def _read(name: str) -> list[list[str]]:
    """The lines of a CSV file of this folder, without its heads."""
    with (FOLDER / name).open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))[1:]


def _pairs(text: str) -> list[tuple[str, str]]:
    """``key=value; key=value``, split."""
    return [(key, value) for key, _, value in (part.partition("=") for part in text.split("; "))]


@cache
def tables() -> dict[tuple[str, str, str], list[Value]]:
    """The cells of every table by report, table and split, in their order."""
    cells: dict[tuple[str, str, str], list[Value]] = {}
    for report, table, split, row, values, flag in _read("values.csv"):
        for metric, value in _pairs(values):
            whole = statistic_of(report, metric) in (PARAMETERS, SETTING) or metric == "train_loss"
            scale = 100 if REPORTS[report]["percent"] and not whole else 1
            cell = Value(table, row, metric, float(value) / scale if value else None, flag)
            cells.setdefault((report, table, split), []).append(cell)
    return cells


def absent_rows() -> list[list[str]]:
    """The rows of published tables that no study has, or that differ in one: report, table, split, row and the reason.

    An empty row stands for all rows of the table.
    """
    return _read("absent.csv")


@cache
def all_settings() -> tuple[Setting, ...]:
    """The settings of ``settings.csv``, whose last column holds ``key=value`` or, for one task, ``task.key=value``."""

    def parsed(value: str) -> Any:
        try:
            return json.loads(value)
        except ValueError:
            return value

    return tuple(
        Setting(report, table, row, *name.rpartition(".")[::2], parsed(value))
        for report, table, row, settings in _read("settings.csv")
        for name, value in _pairs(settings)
    )


def settings_of(report: str, table: str, row: str, task: str) -> dict[str, Any]:
    """What a report says of one of its rows on one of our tasks, by key."""
    asked = (report, table, row, task)
    return {
        setting.key: setting.value
        for setting in all_settings()
        if all(own in ("", wanted) for own, wanted in zip(setting, asked, strict=False))
    }


def statistic_of(report: str, metric: str) -> str:
    """What a column holds; empty: the score of a task at the kept epoch, the mean over seeds."""
    return REPORTS[report].get("columns", {}).get(metric, KEPT)


def published_values(source: Published) -> list[Value]:
    """The cells of published tables, in their order.

    Raises:
        PipelineError: there is no such table.
    """
    there, places = tables(), [(source.report, table, source.split) for table in source.tables]
    if missing := [place for place in places if place not in there]:
        known = "; ".join(sorted(f"{report}, {table} ({split})" for report, table, split in there))
        wanted = "'{1}' ({2}) of '{0}'".format(*missing[0])
        raise PipelineError(f"published: no table {wanted}: there are {known}")
    return [value for place in places for value in there[place]]


def published_epochs(report: str, table: str) -> dict[str, dict[str, float | None]]:
    """The rows of a published table of epochs by column; none where there is no such table."""
    epochs: dict[str, dict[str, float | None]] = {}
    for value in tables().get((report, table, "train/dev"), []):
        epochs.setdefault(value.row, {})[value.metric] = value.value
    return epochs


def published_mistakes(study: Study) -> list[str]:
    """The tables, rows and columns that a study names and its report lacks."""
    source = study.published
    if source is None:
        return []
    try:
        values = published_values(source)
    except PipelineError as error:
        return [str(error)]
    named, columns = dict[str, None](), dict.fromkeys(source.tasks)
    for row in map(study.row, study.methods):
        names = row.published or ()
        as_list = [names] if isinstance(names, str) else names.values() if isinstance(names, dict) else names
        named |= dict.fromkeys(as_list)
        columns |= dict.fromkeys(row.published_columns or ())
    asked: dict[str, tuple[Iterable[str], set[str]]] = {
        "row": (named, {value.row for value in values}),
        "column": (columns, {value.metric for value in values}),
        "table of epochs": (source.curves, {t for t in source.curves if published_epochs(source.report, t)}),
    }
    return [
        f"published: no {what} '{name}' in {source.report}, {', '.join(source.tables)} ({source.split}): there are"
        f" {', '.join(sorted(known))}"
        for what, (names, known) in asked.items()
        for name in names
        if name not in known
    ]
