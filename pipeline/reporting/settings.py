"""How every row was trained, where rows differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.data.tasks.extra import Extra, parse_extra
from pipeline.reporting.cells import line_cell
from pipeline.reporting.entries import Line
from pipeline.reporting.report import Cell, Table
from pipeline.reporting.runs import Scored, StudyRuns, runs_of
from pipeline.reporting.text import MISSING, backbone_text

# Known from the row's name or shown in the main table.
_LEFT_OUT = {"trainable", "epochs", "min_steps"}


def settings_table(runs: StudyRuns) -> Table | None:
    """The settings in which the runs of the main table differ, a column each; None where all are alike."""
    groups = {row: runs.all(row) for row in runs.rows}
    recipes = {row: [(scored, scored.recipe) for scored in group] for row, group in groups.items()}
    every = [recipe for group in recipes.values() for _, recipe in group]
    keys = [
        key for key in (every[0] if every else ()) if key not in _LEFT_OUT and len({str(r[key]) for r in every}) > 1
    ]
    backbones = {row: runs.study.row(row).backbone or runs.result.backbone for row, group in groups.items() if group}
    several = len(set(backbones.values())) > 1
    if not keys and not several:
        return None
    rows = tuple(
        (
            line_cell(runs, Line(row), runs_of(groups[row])),
            *((Cell(backbone_text(backbones[row])),) if several else ()),
            *(Cell(_value(group, key)) for key in keys),
        )
        for row, group in recipes.items()
        if group
    )
    columns = ("method", *(("backbone",) if several else ()), *(key.replace("_", " ") for key in keys))
    notes = ("Settings that are the same in all runs are left out; a key without effect on a row has its default.",)
    return Table("settings", "How the rows were trained", columns, rows, notes)


def _value(group: list[tuple[Scored, dict[str, Any]]], key: str) -> str:
    """One value, or each with the tasks it holds for."""
    tasks: dict[str, list[str]] = {}
    for scored, recipe in group:
        shown = _shown(recipe[key])
        if scored.entry.target not in tasks.setdefault(shown, []):
            tasks[shown].append(scored.entry.target)
    if len(tasks) == 1:
        return next(iter(tasks))
    return "; ".join(f"{value} ({', '.join(names)})" for value, names in tasks.items())


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):  # of all settings, extra data alone is a table
        return ", ".join(str(Extra.model_validate(source)) for source in parse_extra(value)) or MISSING
    return MISSING if value is None else str(value)
