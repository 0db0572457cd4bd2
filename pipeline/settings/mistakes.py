"""Mistakes in a study: in its raw keys, told all at once, and between keys that are each right."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pipeline.settings.recipe import Recipe
from pipeline.settings.rows import MAY_TRAIN, TRAINABLE
from pipeline.system.errors import shortened

if TYPE_CHECKING:
    from pipeline.settings.study import Study

Values = Mapping[str, Any]

_TASK_LISTS = ("targets", "sources", "order", "after")
"""Of a row."""


def recipe_problems(values: Values) -> list[str]:
    """Mistakes in the shared recipe, and those that tasks, rows, the curve, and a row on a task add to it.

    A mistake is told where it was written: what the shared recipe has wrong is not told again for each row.
    """
    shared = _table(values.get("recipe"))
    known = set(Recipe.problems(shared))
    lines = [f"recipe: {problem}" for problem in Recipe.problems(shared)]

    def added(where: str, layers: list[Values], told: Collection[str]) -> set[str]:
        found = Recipe.problems({key: value for layer in layers for key, value in layer.items()})
        lines.extend(f"{where}: {problem}" for problem in found if problem not in told)
        return {*told, *found}

    tasks = {name: _table(own) for name, own in _table(values.get("tasks")).items()}
    rows = {name: _table(_table(own).get("recipe")) for name, own in _table(values.get("rows")).items()}
    of_task = {name: added(f"tasks.{name}", [shared, own], known) for name, own in tasks.items()}
    of_row = {name: added(f"rows.{name}.recipe", [shared, own], known) for name, own in rows.items()}
    for row, recipe in rows.items():
        row_tasks = {
            name: _table(own) for name, own in _table(_table(_table(values["rows"])[row]).get("tasks")).items()
        }
        for task in {**tasks, **row_tasks}:
            layers, told = [shared, tasks.get(task, {}), recipe], of_task.get(task, known) | of_row[row]
            told = added(f"rows.{row}.recipe on {task}", layers, told)
            if task in row_tasks:
                added(f"rows.{row}.tasks.{task}", [*layers, row_tasks[task]], told)
    curve = _table(_table(values.get("curve")).get("recipe"))
    added("curve.recipe", [shared, curve], known)
    return lines


def repeats(values: Values) -> list[str]:
    """Lists in which a value stands twice would run, and count, the same runs twice."""
    curve = _table(values.get("curve"))
    lists = {key: values.get(key) for key in ("methods", "targets", "sources", "seeds")}
    lists |= {f"curve.{key}": curve.get(key) for key in ("rows", "methods", "targets")}
    for name, row in _table(values.get("rows")).items():
        lists |= {f"rows.{name}.{key}": _table(row).get(key) for key in (*_TASK_LISTS, "own")}
    return [
        f"{key}: a value stands twice (got {shortened(list(listed))})"
        for key, listed in lists.items()
        if isinstance(listed, list | tuple) and len({str(item) for item in listed}) < len(listed)
    ]


def stray_tasks(values: Values, known: Collection[str]) -> list[str]:
    """Recipes and rows for tasks that the study has not: misspelt, most often."""
    own = [task for key in ("targets", "sources") for task in _list(values.get(key))]
    return [
        f"{key}: '{task}' is neither a target nor a source ({', '.join(map(str, own))})"
        for key, task in _mentions(values)
        if task not in own and task not in known
    ]


def mentioned_tasks(values: Values) -> list[str]:
    """Every task that recipes and rows name."""
    return [task for _, task in _mentions(values)]


def mistakes_between_keys(study: Study) -> list[str]:
    """Rows that are no method, that are built on what is not there, or that have nothing to run on."""
    named = (("methods", study.methods), ("curve.methods", study.curve.methods if study.curve else ()))
    problems = [
        f"{key}: '{name}' is no method ({', '.join(TRAINABLE)}): write a [rows.{name}] that says which it is"
        for key, names in named
        for name in names
        if not study.has(name)
    ]
    problems += [problem for name in study.rows if (problem := _base_problem(study, name))]
    problems += [problem for name in study.rows for problem in _row_problems(study, name)]
    known = [name for name in study.methods if study.has(name)]
    sequential = [name for name in known if study.row(name).method == "sequential"]
    if study.reference not in study.methods or study.reference in sequential:
        problems.append(f"reference: '{study.reference}' must be one of the methods, and not sequential")
    if study.limit is not None and study.target_limit is not None and study.target_limit > study.limit:
        problems.append(
            f"target_limit: {study.target_limit} is more than limit {study.limit}, which holds for all tasks"
        )
    joins = {"fusion": "fusion", "sequential": "sequential tuning", "multitask": "joint training"}
    for name in known:
        row = study.row(name)
        what = "an adapter that begins as another's" if row.method == "adapter" and row.of else joins.get(row.method)
        if what and not any(study.partners(name, target) for target in study.targets):
            problems.append(f"targets: {what} needs at least two tasks ({name}); add a target or sources")
    if known == list(study.methods) and not any(study.targets_of(name) for name in known):
        problems.append("methods: no row has one of the targets, so there is nothing to run")
    return problems


def _base_problem(study: Study, name: str) -> str | None:
    row = study.rows[name]
    needed = row.built_on
    if needed is None:
        return f"rows.{name}.of: {row.method} is built on no other row: leave it out" if row.of else None
    of = row.of or needed
    if not study.has(of):
        return f"rows.{name}.of: there is no row '{of}'"
    if (found := study.row(of).method) != needed:
        return f"rows.{name}.of: '{of}' is a row of {found}, but {row.method} is built on {needed}"
    if row.method == "adapter" and study.row(of).of is not None:
        return f"rows.{name}.of: '{of}' is built on other adapters itself: name a row whose adapters begin fresh"
    return None


def _row_problems(study: Study, name: str) -> Iterator[str]:
    row = study.rows[name]
    if row.order is not None:
        if row.method != "sequential":
            yield f"rows.{name}.order: only sequential tuning goes through tasks in turn, not {row.method}"
        if row.sources is not None:
            yield f"rows.{name}: order says what comes before each task: leave sources out"
    if row.own and row.method != "fusion":
        yield f"rows.{name}.own: only a fusion has an adapter of its own target, not {row.method}"
    for own in row.own if row.method == "fusion" else ():
        if not study.has(own) or study.row(own).method != "adapter":
            yield f"rows.{name}.own: '{own}' is no row of adapters"
    if row.built_on is not None:
        for base in dict.fromkeys((row.of or row.built_on, *row.own)):
            if study.has(base) and (found := study.row(base).backbone) != row.backbone:
                of, own = (f"'{name}'" if name else "the study's" for name in (found, row.backbone))
                yield f"rows.{name}.backbone: {own}, but '{base}', which it is built on, has {of}: give both the same"
    if row.after and row.method != "multitask":
        yield f"rows.{name}.after: only joint training (multitask) can come after other tasks, not {row.method}"
    allowed, trainable = MAY_TRAIN.get(row.method, ()), row.recipe.get("trainable")
    if trainable is not None and trainable not in (*allowed, TRAINABLE[row.method]):
        yield f"rows.{name}.recipe: a row of {row.method} trains {' or '.join(allowed) or TRAINABLE[row.method]}"


def _mentions(values: Values) -> Iterator[tuple[str, str]]:
    yield from (("tasks", task) for task in _table(values.get("tasks")))
    for name, row in _table(values.get("rows")).items():
        for key in _TASK_LISTS:
            yield from ((f"rows.{name}.{key}", str(task)) for task in _list(_table(row).get(key)))
        for key in ("tasks", "published"):
            yield from ((f"rows.{name}.{key}", str(task)) for task in _table(_table(row).get(key)))
    curve = _table(values.get("curve"))
    yield from (("curve.targets", str(task)) for task in _list(curve.get("targets")))
    columns = _table(_table(values.get("published")).get("tasks"))
    yield from (("published.tasks", str(task)) for task in columns.values())


def _table(value: Any) -> Values:
    return value if isinstance(value, Mapping) else {}


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else []
