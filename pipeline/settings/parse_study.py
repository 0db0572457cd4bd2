"""Parse studies from raw values. Reports every mistake at once, including those in recipes."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from pipeline.settings.kinds import KINDS
from pipeline.settings.raw import (
    Table,
    expand_grids,
    expand_likes,
    listed,
    override_recipes,
    recipe_problems,
    stray_tasks,
)
from pipeline.settings.recipe import has_key, layered, table
from pipeline.settings.study import Study
from pipeline.system.errors import nearest, raise_all, validation_problems


def parse_study(
    values: Mapping[str, Any],
    where: str,
    known_tasks: Collection[str] | None = (),
    name_of: Callable[[str], str] | None = None,
    given: Mapping[str, Any] = MappingProxyType({}),
) -> Study:
    """Validate a study with all its recipes; a :class:`PipelineError` names ``where`` and every mistake.

    Args:
        known_tasks: further tasks that rows and recipes may name, without effect; None for any task.
        name_of: returns the new name of a task.
        given: settings, flat or in their parts, that override every recipe and are not tuned.
    """
    given = layered(given)
    values, bases, wrong_likes = expand_likes(values)
    values = override_recipes(values, given)
    values, grids, wrong_grids = expand_grids(values)
    in_recipes = map(_where_it_belongs, recipe_problems(values, bases))
    problems = [*wrong_likes, *wrong_grids, *in_recipes, *stray_tasks(values, known_tasks)]
    if "reference" not in values:
        values = {**values, "reference": _usual_reference(values)}
    try:
        study = Study.model_validate(values, context=name_of)
    except ValidationError as error:
        raise_all(where, validation_problems(error) + problems)
        raise
    if not wrong_likes and not wrong_grids:  # else the rows are not those that were meant
        problems += [*_grids_named(study, grids)] or [*_grids_given(study, grids, given), *_mistakes(study)]
        no_targets = () if known_tasks is None else {*study.apart} - {*study.targets, *known_tasks}
        problems += [f"apart.{task}: not a target" for task in sorted(no_targets)]
        problems = problems or [*_grids_on_curve(study, grids)]  # needs valid recipes
    raise_all(where, problems)
    return study


def with_task_names(study: Study, name_of: Callable[[str], str]) -> Study:
    """The same study with tasks renamed; a PipelineError if a list had both an alias and its task."""
    return parse_study(study.model_dump(), f"study {study.name}", known_tasks=None, name_of=name_of)


def _where_it_belongs(problem: str) -> str:
    """If an unknown key of a recipe belongs at the top of the file, above the TOML header that captured it, say so."""
    where, _, mistake = problem.partition(": ")
    key, _, what = mistake.partition(": ")
    if what == "unknown key" and key in Study.model_fields:
        return f"{where}: {key} belongs at the top level of the file, not in [{where}]"
    return problem


def _mistakes(study: Study) -> list[str]:
    """Rows that do not exist, do not fit each other, or have nothing to run on."""
    rows = {name: study.row(name) for name in (*KINDS, *study.rows)}
    known = [name for name in study.methods if name in rows]
    taken_in = (base for name in known for base in rows[name].own if base in rows)
    return [
        *_unknown(study, rows),
        *(f"rows.{name}.{text}" for name in dict.fromkeys((*study.rows, *known)) for text in rows[name].mistakes(rows)),
        *(f"rows.{name}.tune.{text}" for name, row in rows.items() for text in row.tune_mistakes(study.recipe)),
        *(mistake for name in known for mistake in rows[name].kind.mistakes_in(study, name, rows)),
        *_mistakes_of_all(study, known),
        *(text for name in dict.fromkeys((*known, *taken_in)) for text in _without_partners(study, name)),
        *_nothing_to_run(study, known),
    ]


def _grids_named(study: Study, grids: Mapping[str, Collection[str]]) -> Iterator[str]:
    """Keys that name one of the ``grids`` (with its cells) but need a single row."""
    named = [("reference", study.reference)]
    for name in dict.fromkeys((*study.rows, *study.methods)):
        if name in study.rows or name in KINDS:
            row = study.row(name)
            bases = {"of": (row.of,), "own": row.own, "variant_of": (row.variant_of,)}
            named += [(f"rows.{name}.{key}", base) for key, names in bases.items() for base in names if base]
    for key, name in named:
        if name in grids:
            cells = [*grids[name]]
            span = " to ".join(dict.fromkeys((cells[0], cells[-1])))
            yield f"{key}: '{name}' is a grid ({span}): name one of its rows, or write tune instead of grid"


def _grids_given(study: Study, grids: Mapping[str, Mapping[str, Table]], given: Mapping[str, Any]) -> Iterator[str]:
    """Keys that ``given`` sets for all rows, although a grid in use sets them for its cells."""
    used, more = set[str](), {*study.methods}
    while more:
        used |= more
        rows = [study.row(name) for name in more if name in study.rows or name in KINDS]
        more = {name for row in rows for name in (row.of, *row.own, *row.members) if name} - used
    for name, key in _set_over(grids, used, given):
        yield f"{key}: rows.{name} is a grid of it: leave the option out, or the row (--methods)"


def _grids_on_curve(study: Study, grids: Mapping[str, Mapping[str, Table]]) -> Iterator[str]:
    """Keys that the curve's recipe sets for all rows, although a grid sets them for cells that the curve trains."""
    if study.curve is None or not grids:
        return
    trained = set[str]()
    for name, targets in study.curve_rows().items():
        for member in study.row(name).members or (name,):
            for target in {*targets} & {*study.targets_of(member)}:
                trained |= {member, *study.bases_on(member, target)}
    for name, key in _set_over(grids, trained, layered(study.curve.recipe)):
        yield f"rows.{name}.grid.{key}: curve.recipe sets it for all its cells: leave it out of one of them"


def _unknown(study: Study, rows: Collection[str]) -> Iterator[str]:
    on_curve = study.curve.methods if study.curve else None
    named = (("methods", study.methods), ("curve.methods", on_curve or ()))
    there, known = ", ".join(KINDS), (*KINDS, *study.rows)
    by_title = {kind.title: method for method, kind in KINDS.items()}  # as in tables
    for key, names in named:
        for name in names:
            if name not in rows:
                near = nearest(name, (*known, *by_title))
                meant = f"; did you mean '{by_title.get(near, near)}'?" if near else ""
                yield f"{key}: '{name}' is not a method ({there}) or a row of the study{meant}"


def _mistakes_of_all(study: Study, known: Sequence[str]) -> Iterator[str]:
    """Keys of the study that do not fit its rows."""
    by_source = [name for name in known if study.row(name).kind.is_by_source]
    if study.reference not in study.methods or study.reference in by_source:
        yield f"reference: '{study.reference}' must be one of the methods, and not sequential"
    if study.limit is not None and study.target_limit is not None and study.target_limit > study.limit:
        yield f"target_limit: {study.target_limit} is more than limit {study.limit}, which holds for all tasks"


def _without_partners(study: Study, name: str) -> Iterator[str]:
    """Targets for which a row that joins tasks has no other task."""
    row = study.row(name)
    alone = [target for target in study.targets_of(name) if row.kind.joins(row) and not study.partners(name, target)]
    if alone and not any(study.partners(name, target) for target in study.targets):
        yield f"targets: {row.kind.joins(row)} needs at least two tasks ({name}); add a target or sources"
        return
    for target in alone:
        if target in study.apart:
            yield f"apart.{target}: leaves no source for {name}"
        elif row.kind.combines or row.through:
            key = "through" if row.through else "sources"
            yield f"rows.{name}.{key}: none for {target}: add one, or leave it out of targets"


def _nothing_to_run(study: Study, known: Sequence[str]) -> Iterator[str]:
    if known == [*study.methods] and not any(study.targets_of(name) for name in known):
        yield "methods: no row has one of the targets, so there is nothing to run"


def _set_over(
    grids: Mapping[str, Mapping[str, Table]], used: Collection[str], recipe: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    """Name and key of every grid with a ``used`` cell and a key that ``recipe`` sets too."""
    for name, cells in grids.items():
        keys = {key for point in cells.values() for key in point if has_key(recipe, key)}
        yield from ((name, key) for key in sorted(keys) if not cells.keys().isdisjoint(used))


def _usual_reference(values: Mapping[str, Any]) -> Any:
    """The row to compare with in tests if the study names none: full, else the first that is not sequential.

    Args:
        values: raw, with every row written out.
    """
    rows = table(values.get("rows"))
    names = map(str, listed(values.get("methods")))
    method_of = {name: str(table(rows.get(name)).get("method", name)) for name in names}
    sequential = [method for method, kind in KINDS.items() if kind.is_by_source]
    able = [name for name, method in method_of.items() if method not in sequential]
    return "full" if "full" in able else next(iter(able), "full")
