"""Mistakes in a study: in its raw values, where validation does not see them, and between rows that are each valid."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from pipeline.settings.recipe import Recipe
from pipeline.settings.rows import Row

Values = Mapping[str, Any]

_TASK_LISTS = ("targets", "sources", "order", "after")


def table(value: Any) -> dict[str, Any]:
    """``value`` where it is a table; else nothing, since validation reports it."""
    return value if isinstance(value, dict) else {}


def listed(value: Any) -> list[Any]:
    """The same for a list."""
    return list(value) if isinstance(value, list | tuple) else []


def parts(values: Values) -> dict[str, dict[str, Any]]:
    """The tables of a raw study that have recipes and lists, each under what stands before its keys in a message."""
    rows = {f"rows.{name}.": row for name, row in table(values.get("rows")).items()}
    named = {"": values, **rows, "curve.": values.get("curve")}
    return {prefix: part for prefix, part in named.items() if isinstance(part, dict)}


def recipe_problems(values: Values, bases: Mapping[str, str]) -> list[str]:
    """Mistakes in the shared recipe, and those that tasks, rows, the curve, and a row on a task add to it.

    A mistake is reported where it was written: what is wrong in the shared recipe is not repeated for each row.

    Args:
        bases: the row that a row is a copy of, whose mistakes are not repeated either.
    """
    shared, tasks = table(values.get("recipe")), _tables(values.get("tasks"))
    mistakes: list[tuple[str, str, str]] = []

    def report(row: str, where: str, *layers: Values, known: Collection[str] = ()) -> set[str]:
        problems = Recipe.problems({key: value for layer in layers for key, value in layer.items()})
        mistakes.extend((row, where, problem) for problem in problems if problem not in known)
        return {*known, *problems}

    everywhere = report("", "recipe", shared)
    on_task = {task: report("", f"tasks.{task}", shared, own, known=everywhere) for task, own in tasks.items()}
    for name, row in _tables(values.get("rows")).items():
        recipe, row_tasks = table(row.get("recipe")), _tables(row.get("tasks"))
        in_row = report(name, f"rows.{name}.recipe", shared, recipe, known=everywhere)
        for task in {**tasks, **row_tasks}:
            layers = (shared, tasks.get(task, {}), recipe)
            known = report(name, f"rows.{name}.recipe on {task}", *layers, known=in_row | on_task.get(task, set()))
            if task in row_tasks:
                report(name, f"rows.{name}.tasks.{task}", *layers, row_tasks[task], known=known)
    report("", "curve.recipe", shared, table(table(values.get("curve")).get("recipe")), known=everywhere)
    of_rows = {(row, problem) for row, _, problem in mistakes}
    return [f"{where}: {problem}" for row, where, problem in mistakes if (bases.get(row), problem) not in of_rows]


def stray_tasks(values: Values, known: Collection[str] | None) -> list[str]:
    """Recipes and rows for tasks that are neither the study's nor ``known``, often misspelt; None: all are known."""
    own = [task for key in ("targets", "sources") for task in listed(values.get(key)) if isinstance(task, str)]
    return [
        f"{key}: '{task}' is neither a target nor a source ({', '.join(own)})"
        for key, task in _mentions(values)
        if known is not None and task not in own and task not in known
    ]


def row_mistakes(rows: Mapping[str, Row], names: Iterable[str]) -> Iterator[str]:
    """What is wrong in the rows called ``names``: in themselves, and in what they are built on.

    Args:
        rows: every row that there is, with its base filled in.
    """
    for name in names:
        row = rows[name]
        yield from (f"rows.{name}.{mistake}" for mistake in row.mistakes())
        if row.built_on is not None:
            yield from (f"rows.{name}.{mistake}" for mistake in _base_mistakes(name, row, rows))


def _base_mistakes(name: str, row: Row, rows: Mapping[str, Row]) -> Iterator[str]:
    base = rows.get(row.of or "")
    if base is None:
        yield f"of: there is no row '{row.of}'"
    elif base.method != row.built_on:
        yield f"of: '{row.of}' is a row of {base.method}, but {row.method} is built on {row.built_on}"
    elif row.method == "adapter" and base.of is not None:
        yield f"of: '{row.of}' is built on other adapters itself: name a row whose adapters start fresh"
    for own in row.own if row.method == "fusion" else ():
        if own not in rows or rows[own].method != "adapter":
            yield f"own: '{own}' is no row of adapters"
    for other in dict.fromkeys((row.of or "", *row.own)):
        if other in rows and rows[other].backbone != row.backbone:
            mine, its = (f"'{given}'" if given else "the study's" for given in (row.backbone, rows[other].backbone))
            yield f"backbone: {mine}, but '{other}', which it is built on, has {its}: give both the same"


def _mentions(values: Values) -> Iterator[tuple[str, str]]:
    """Every task that recipes and rows name, each with the key where they do."""
    for prefix, part in parts(values).items():
        lists = {key: listed(part.get(key)) for key in _TASK_LISTS} if prefix else {}
        tables = {key: table(part.get(key)) for key in ("tasks", "published") if prefix or key == "tasks"}
        for key, tasks in {**lists, **tables}.items():
            yield from ((f"{prefix}{key}", task) for task in tasks if isinstance(task, str))
    columns = table(table(values.get("published")).get("tasks"))
    yield from (("published.tasks", task) for task in columns.values() if isinstance(task, str))


def _tables(value: Any) -> dict[str, dict[str, Any]]:
    return {key: table(inner) for key, inner in table(value).items()}
