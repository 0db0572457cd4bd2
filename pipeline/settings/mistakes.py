"""Mistakes in the raw values of a study that validation does not see: in recipes, and in the names of tasks."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from pipeline.settings.part import table
from pipeline.settings.recipe import Recipe, layered

Values = Mapping[str, Any]

_TASK_LISTS = ("targets", "sources", "order", "after")


def listed(value: Any) -> list[Any]:
    """The same for a list."""
    return list(value) if isinstance(value, list | tuple) else []


def parts(values: Values) -> dict[str, dict[str, Any]]:
    """The study, its rows and its curve, where they are tables, each under the prefix of its keys in a message."""
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
        problems = Recipe.problems(layered(*layers))
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
