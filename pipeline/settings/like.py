"""Rows that are like others: ``like = "ROW"`` copies another row of the study, and the row's own keys go over it."""

from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any

from pipeline.settings.part import table
from pipeline.settings.recipe import layered
from pipeline.settings.rows import METHODS
from pipeline.system.errors import shortened

_NOT_COPIED = ("title", "published")


def expand_likes(values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str], list[str]]:
    """A study's raw values with every row written out; the row that each row is like; and what is wrong.

    A row copies all but the title and the published names. A row that is called like a method is one of that method.
    """
    rows = values.get("rows")
    if not isinstance(rows, dict):
        return dict(values), {}, []
    complete: dict[str, Any] = {method: {"method": method} for method in METHODS}
    bases: dict[str, Any] = {}
    for name, row in rows.items():
        complete[name] = {**complete.get(name, {}), **row} if isinstance(row, dict) else row
        if isinstance(row, dict) and "like" in row:
            bases[name] = complete[name].pop("like")
    wrong = [name for name, base in bases.items() if not isinstance(base, str) or base not in complete]
    problems = [f"rows.{name}.like: there is no row {shortened(bases.pop(name))}" for name in wrong]
    while True:
        try:
            order = tuple(TopologicalSorter({name: (base,) for name, base in bases.items()}).static_order())
            break
        except CycleError as error:
            circle = error.args[1][::-1]
            problems.append(f"rows.{circle[0]}.like: rows cannot be like each other ({' -> '.join(circle)})")
            wrong.append(circle[0])
            del bases[circle[0]]
    for name in wrong:
        complete[name].setdefault("method", "full")  # that it has none would distract from what is wrong
    for name in order:
        if name in bases:
            complete[name] = _over(complete[bases[name]], complete[name])
    return {**values, "rows": {name: complete[name] for name in rows}}, bases, problems


def _over(base: Any, row: dict[str, Any]) -> dict[str, Any]:
    copied = {key: value for key, value in base.items() if key not in _NOT_COPIED} if isinstance(base, dict) else {}
    if isinstance(row.get("recipe"), dict):
        row = {**row, "recipe": layered(table(copied.get("recipe")), row["recipe"])}
    if isinstance(row.get("tasks"), dict):
        tasks = table(copied.get("tasks"))
        own = {
            task: layered(table(tasks.get(task)), recipe) if isinstance(recipe, dict) else recipe
            for task, recipe in row["tasks"].items()
        }
        row = {**row, "tasks": {**tasks, **own}}
    return {**copied, **row}
