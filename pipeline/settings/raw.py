"""Raw values of a study before validation: writes rows out, and finds mistakes in recipes and task names."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any

from pipeline.settings.grid import point_text, points
from pipeline.settings.kinds import KINDS
from pipeline.settings.recipe import Recipe, has_key, layered, table, without
from pipeline.system.errors import shortened

Table = dict[str, Any]

_NOT_COPIED = ("title", "published", "published_columns", "keep_weights", "variant_of")
_MOST_CELLS = 1000
_TASK_LISTS = ("targets", "sources", "order", "through", "after")


def listed(value: Any) -> list[Any]:
    """``value`` if it is a list; else nothing, since validation reports it."""
    return list(value) if isinstance(value, list | tuple) else []


def expand_likes(values: Mapping[str, Any]) -> tuple[Table, dict[str, str], list[str]]:
    """The values with every row written out; the row that each row copies; and mistakes.

    ``like = "ROW"`` copies another row except its title, its published names and whether it keeps its weights; the
    row's own keys override the copy. A row that is named after a method has that method.
    """
    rows = values.get("rows")
    if not isinstance(rows, dict):
        return dict(values), {}, []
    complete: Table = {method: {"method": method} for method in KINDS}
    bases: Table = {}
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
        complete[name].setdefault("method", "full")  # a missing method would distract from the mistake
    for name in order:
        if name in bases:
            complete[name] = _over(complete[bases[name]], complete[name])
    return {**values, "rows": {name: complete[name] for name in rows}}, bases, problems


def _over(base: Any, row: Table) -> Table:
    copied = {key: value for key, value in table(base).items() if key not in _NOT_COPIED}
    if isinstance(row.get("recipe"), dict):
        row = {**row, "recipe": layered(table(copied.get("recipe")), row["recipe"])}
    if isinstance(row.get("tasks"), dict):
        tasks = table(copied.get("tasks"))
        merged = {
            task: layered(table(tasks.get(task)), recipe) if isinstance(recipe, dict) else recipe
            for task, recipe in row["tasks"].items()
        }
        row = {**row, "tasks": {**tasks, **merged}}
    return {**copied, **row}


def override_recipes(values: Table, given: Mapping[str, Any]) -> Table:
    """Override the keys in ``given``, which are :func:`layered`, in every recipe, and stop tuning them.

    Grids stay: :func:`expand_grids` makes recipes of their values.
    """
    if not given:
        return values

    def over(recipe: Any) -> Any:
        return layered(recipe, given) if isinstance(recipe, dict) else recipe

    def rest(recipe: Any) -> Any:
        return without(recipe, given) if isinstance(recipe, dict) else recipe

    def rests(recipes: Any) -> Any:
        return {name: rest(recipe) for name, recipe in recipes.items()} if isinstance(recipes, dict) else recipes

    def row(part: Any) -> Any:
        return _changed(part, {"recipe": rest, "tasks": rests, "tune": rest})

    def rows(named: Any) -> Any:
        return {name: row(part) for name, part in named.items()} if isinstance(named, dict) else named

    whole = {"recipe": over, "tasks": rests, "tune": rests, "rows": rows, "curve": row}
    return table(_changed({"recipe": {}, **values}, whole))


def _changed(part: Any, changes: Mapping[str, Callable[[Any], Any]]) -> Any:
    """A table with ``changes`` applied to its keys; anything else as it is, since validation reports it."""
    if not isinstance(part, dict):
        return part
    return {key: changes[key](value) if key in changes else value for key, value in part.items()}


def expand_grids(values: Table) -> tuple[Table, dict[str, dict[str, Table]], list[str]]:
    """The values with each ``[rows.NAME]`` that has a ``grid`` replaced by its cells; these cells; and mistakes.

    ``grid = { head_dropout = [0.1, 0.3], learning_rate = [1e-5, 2e-5] }`` makes ``NAME-1`` to ``NAME-4``, varying the
    last key fastest; their values are their titles. If ``methods``, ``curve.methods`` or the members of an ensemble
    name the row, they mean all its cells. A list in ``published`` gives each cell its name, or an empty text for none.

    The cells of each grid are returned with their values for its keys.
    """
    rows = values.get("rows")
    if not isinstance(rows, dict):
        return values, {}, []
    cells_of: dict[str, Table] = {}
    grids: dict[str, dict[str, Table]] = {}
    problems: list[str] = []
    for name, row in rows.items():
        if isinstance(row, dict) and "grid" in row:
            mistakes = _grid_mistakes(f"rows.{name}", row)
            plain = {key: value for key, value in row.items() if key != "grid"}
            expandable = not mistakes and isinstance(row.get("recipe", {}), dict)  # else validation reports it
            cells_of[name] = _cells(name, plain, row["grid"]) if expandable else {name: plain}
            grids[name] = dict(zip(cells_of[name], points(row["grid"]), strict=True)) if expandable else {}
            taken = [cell for cell in cells_of[name] if cell in rows and cell != name]
            problems += mistakes + [f"rows.{name}.grid: its cell {cell} has the name of another row" for cell in taken]
    expanded = {cell: part for name, row in rows.items() for cell, part in cells_of.get(name, {name: row}).items()}

    def cells(names: Sequence[Any]) -> list[Any]:
        return [cell for name in names for cell in (cells_of.get(name, [name]) if isinstance(name, str) else [name])]

    def with_cells(part: Any, *keys: str) -> Any:
        if not isinstance(part, dict):
            return part
        return {**part, **{key: cells(part[key]) for key in keys if isinstance(part.get(key), list | tuple)}}

    expanded = {name: with_cells(row, "of", "members") for name, row in expanded.items()}
    whole = {**with_cells(values, "methods"), "rows": expanded, "curve": with_cells(values.get("curve"), "methods")}
    return whole, grids, problems


def _grid_mistakes(where: str, row: Table) -> list[str]:
    grid, published = row["grid"], row.get("published")
    if not isinstance(grid, dict) or not grid:
        return [f"{where}.grid: write a table of recipe keys with lists of values, such as {{ epochs = [2, 4] }}"]
    problems = [
        f"{where}.grid.{key}: write a list of values, such as [0.1, 0.3] (got {shortened(listed)})"
        for key, listed in grid.items()
        if not isinstance(listed, list | tuple) or not listed
    ]
    if problems:
        return problems
    size = math.prod(map(len, grid.values()))
    if size > _MOST_CELLS:
        return [f"{where}.grid: {size} cells are too many for one study (most {_MOST_CELLS}): leave values out"]
    if isinstance(published, list | tuple) and len(published) != size:
        return [f"{where}.published: {len(published)} names for {size} cells of the grid"]
    return [
        f"{where}.grid.{key}: tasks.{task} has it, which is over the grid there: leave it out of one of them"
        for key in grid
        for task, recipe in _tables(row.get("tasks")).items()
        if has_key(layered(recipe), key)
    ]


def _cells(name: str, row: Table, grid: Table) -> Table:
    published = row.get("published")
    cells = {}
    for number, point in enumerate(points(grid), start=1):
        cells[f"{name}-{number}"] = {
            **row,
            "title": f"{row.get('title') or name}, {point_text(point)}",
            "recipe": layered(row.get("recipe", {}), point),
            "published": (published[number - 1] or None) if isinstance(published, list | tuple) else published,
        }
    return cells


def parts(values: Mapping[str, Any]) -> dict[str, Table]:
    """The study, its rows and its curve, where they are tables, by the prefix of their keys in a message."""
    rows = {f"rows.{name}.": row for name, row in table(values.get("rows")).items()}
    named = {"": values, **rows, "curve.": values.get("curve")}
    return {prefix: part for prefix, part in named.items() if isinstance(part, dict)}


def recipe_problems(values: Mapping[str, Any], bases: Mapping[str, str]) -> list[str]:
    """Mistakes in the shared recipe, and those that tasks, rows, the curve, and rows on a task add.

    A mistake is reported once, where it was written: not again in rows that share the recipe or that copy the row
    according to ``bases``.
    """
    shared, tasks = table(values.get("recipe")), _tables(values.get("tasks"))
    mistakes: list[tuple[str, str, str]] = []

    def report(row: str, where: str, *layers: Mapping[str, Any], known: Collection[str] = ()) -> set[str]:
        problems = Recipe.problems(layered(*layers))
        mistakes.extend((row, where, problem) for problem in problems if problem not in known)
        return {*known, *problems}

    everywhere = report("", "recipe", shared)
    on_task = {task: report("", f"tasks.{task}", shared, recipe, known=everywhere) for task, recipe in tasks.items()}
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


def stray_tasks(values: Mapping[str, Any], known: Collection[str] | None) -> list[str]:
    """Recipes and rows for unknown tasks, often misspelt: neither the study's nor ``known`` (None: all are known)."""
    mentions: list[tuple[str, Any]] = []
    for prefix, part in parts(values).items():
        lists = {key: listed(part.get(key)) for key in _TASK_LISTS} if prefix else {}
        tables = {key: table(part.get(key)) for key in ("tasks", "published") if prefix or key == "tasks"}
        mentions += [(f"{prefix}{key}", task) for key, tasks in {**lists, **tables}.items() for task in tasks]
    mentions += [("published.tasks", task) for task in table(table(values.get("published")).get("tasks")).values()]
    mentions += [("scoring.tasks", task) for task in table(table(values.get("scoring")).get("tasks"))]
    named = [task for key in ("targets", "sources") for task in listed(values.get(key)) if isinstance(task, str)]
    # A target may also be kept apart from a task whose rows a recipe adds to others.
    added = _extra_tasks(values)
    for target, tasks in table(values.get("apart")).items():
        mentions += [(f"apart.{target}", task) for task in listed(tasks) if task not in added]
    return [
        f"{key}: '{task}' is neither a target nor a source ({', '.join(named)})"
        for key, task in mentions
        if known is not None and isinstance(task, str) and task not in named and task not in known
    ]


def _extra_tasks(values: Mapping[str, Any]) -> list[Any]:
    """The tasks whose rows a recipe adds to other tasks."""
    recipes: list[Any] = []
    for prefix, part in parts(values).items():
        grids = [part.get("tune")] if prefix else table(part.get("tune")).values()
        tuned = (extra for grid in grids for extra in listed(table(grid).get("extra")))
        recipes += [part.get("recipe"), *table(part.get("tasks")).values(), *({"extra": extra} for extra in tuned)]
    names: list[Any] = []
    for extra in (table(recipe).get("extra") for recipe in recipes):
        names += (*table(extra), *(table(source).get("task") for source in listed(extra)))
    return names


def _tables(value: Any) -> dict[str, Table]:
    return {key: table(inner) for key, inner in table(value).items()}
