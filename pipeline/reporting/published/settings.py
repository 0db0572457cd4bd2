"""How published rows were trained, and which of their settings ours lack: computed from the recipes of the runs."""

import json
import math
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

from pipeline.data.tasks.extra import Extra, parse_extra
from pipeline.reporting.published.tables import lines_of, tasks_of
from pipeline.reporting.published.values import REPORTS, pairs, published_values, read
from pipeline.reporting.report import Cell, Table
from pipeline.reporting.runs import StudyRuns, runs_of
from pipeline.reporting.text import MISSING, count
from pipeline.settings.kinds import KINDS
from pipeline.settings.recipe import Recipe
from pipeline.settings.rows import Method
from pipeline.settings.sections import Published
from pipeline.system.backbone_name import backbone_text

UNSTATED = "?"
"""The report does not say."""


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


@cache
def all_settings() -> tuple[Setting, ...]:
    """The settings of ``settings.csv``, whose last column holds ``key=value`` or, for one task, ``task.key=value``."""
    return tuple(
        Setting(report, table, row, *name.rpartition(".")[::2], _parsed(value))
        for report, table, row, settings in read("settings.csv")
        for name, value in pairs(settings)
    )


def settings_of(report: str, table: str, row: str, task: str) -> dict[str, Any]:
    """What a report says of one of its rows on one of our tasks, by key."""
    asked = (report, table, row, task)
    return {
        setting.key: setting.value
        for setting in all_settings()
        if all(own in ("", wanted) for own, wanted in zip(setting, asked, strict=False))
    }


def _parsed(value: str) -> Any:
    try:
        return json.loads(value)
    except ValueError:
        return value


def in_effect(recipe: Recipe) -> dict[str, Any]:
    """The flat values of a resolved recipe, each rate that follows another with its value."""
    values = recipe.flat()
    for key in ("backbone_learning_rate", "head_learning_rate", "gate_learning_rate"):
        values[key] = values[key] or values["learning_rate"]
    if values["embedding_learning_rate"] is None and values["layer_decay"] == 1:
        values["embedding_learning_rate"] = values["backbone_learning_rate"]
    values["steps_per_epoch"] = values["steps_per_epoch"] or values["max_steps_per_epoch"]
    values["extra"] = [str(Extra.model_validate(source)) for source in parse_extra(values["extra"])]
    return values


def _ours(recipe: Recipe, method: Method) -> dict[str, Any]:
    return {"method": method, "optimizer": "AdamW", **in_effect(recipe)}


def differences(theirs: Mapping[str, Any], recipe: Recipe, method: Method) -> dict[str, tuple[str, str]]:
    """The settings that are stated and not ours, by key: theirs and ours as text.

    A setting without effect on our recipe, whose part is at its default there, still differs: the report had it.
    """
    ours, trains = _ours(recipe, method), not KINDS[method].is_ensemble
    return {
        key: (_text(value), _text(ours[key]))
        for key, value in theirs.items()
        if value != UNSTATED and (trains or key == "method") and not _same(value, ours[key])
    }


def _same(theirs: Any, ours: Any) -> bool:
    if isinstance(theirs, float | int) and isinstance(ours, float | int):
        return math.isclose(theirs, ours)
    return bool(theirs == ours)


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or MISSING
    return MISSING if value is None else str(value).lower() if isinstance(value, bool) else f"{value}"


class Trained(NamedTuple):
    """A published row, and how ours was trained on one task."""

    table: str
    name: str
    task: str
    theirs: Mapping[str, Any]
    """What the report says."""
    recipe: Recipe
    method: Method
    runs: tuple[str, ...]


def _trained(runs: StudyRuns, source: Published) -> Iterator[Trained]:
    """Each published row that a row of the study stands for, on each task."""
    values = published_values(source)
    measured = {(value.table, source.tasks.get(value.metric, "")) for value in values}
    for table, name in dict.fromkeys((value.table, value.row) for value in values):
        tasks = [task for task in tasks_of(runs, source) if (table, task) in measured]
        for line, trained in lines_of(runs, name):
            for task in [trained] if trained else tasks:
                if group := runs.cell(line, task):
                    theirs, method = settings_of(source.report, table, name, task), runs.study.row(line.row).method
                    yield Trained(table, name, task, theirs, runs.recipe_of(group[0]), method, runs_of(group))


def differences_table(runs: StudyRuns, source: Published) -> Table | None:
    """A line a published row and setting that is not ours; None where there is none."""
    differing: dict[tuple[str, str, str, str, str], tuple[dict[str, None], dict[str, None]]] = {}
    for row in _trained(runs, source):
        for key, (their, our) in differences(row.theirs, row.recipe, row.method).items():
            tasks, used = differing.setdefault((row.table, row.name, key, their, our), ({}, {}))
            tasks[row.task] = None
            used.update(dict.fromkeys(row.runs))
    rows = [
        (*map(Cell, (table, name, key.replace("_", " "), ", ".join(tasks), their)), Cell(our, our, tuple(used)))
        for (table, name, key, their, our), (tasks, used) in differing.items()
    ]
    columns = ("table", "method", "setting", "tasks", source.report, "ours")
    return Table.named("published-differences", columns, rows) if rows else None


def unstated_table(runs: StudyRuns, source: Published) -> Table | None:
    """A line a setting that the report does not give for some row, and what it is in ours; None without any."""
    unstated: dict[str, dict[str, dict[str, None]]] = {}
    for row in _trained(runs, source):
        ours, trains = _ours(row.recipe, row.method), not KINDS[row.method].is_ensemble
        for key, value in row.theirs.items():
            if trains and value == UNSTATED:
                unstated.setdefault(key, {}).setdefault(_text(ours[key]), {})[row.task] = None
    rows = [
        tuple(map(Cell, (key.replace("_", " "), ", ".join(tasks), our)))
        for key, values in unstated.items()
        for our, tasks in values.items()
    ]
    return Table.named("published-unstated", ("setting", "tasks", "ours"), rows) if rows else None


def setting_table(runs: StudyRuns, source: Published) -> Table:
    """The published data and backbone beside ours."""
    report = REPORTS[source.report]
    rows = [
        ("backbone", report["backbone"], backbone_text(runs.result.backbone)),
        ("seeds", report["seeds"], str(len(runs.study.seeds))),
    ]
    for task in tasks_of(runs, source):
        own = [scored for scored in runs.scored if scored.entry.target == task and scored.entry.rows is None]
        train, known = report["rows"].get(task, (None, None))
        for part, theirs, ours in (
            ("training", train, {size for scored in own if (size := runs.train_rows(scored))}),
            ("scored", known, {scored.score.scored_rows for scored in own}),
        ):
            rows.append((f"{task}, {part} rows", count(theirs), " / ".join(map(count, sorted(ours))) or MISSING))
    return Table.named("published-setting", ("setting", source.report, "ours"), (tuple(map(Cell, row)) for row in rows))
