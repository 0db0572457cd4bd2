"""Parse studies: write out the rows of a file, validate it with all its recipes, and report every mistake at once."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from pipeline.settings.kinds import KINDS, SOME_KEYS, Grid, Method, Row, RowName, point_text, points
from pipeline.settings.recipe import Recipe, has_key, layered, table, without
from pipeline.settings.study import Study
from pipeline.system.errors import PipelineError, nearest, raise_all, validation_problems

Table = dict[str, Any]

_NOT_COPIED = ("title", "published", "published_columns", "keep_weights", "variant_of")


class _WrittenRow(Row):
    """A row as a file has it: a copy of another row, or one for every combination of a grid."""

    method: Method | None = None  # type: ignore[assignment]
    like: RowName | None = None
    grid: Grid = {}


class _WrittenStudy(Study):
    rows: dict[RowName, _WrittenRow] = {}  # type: ignore[assignment]


def parse_study(
    values: Mapping[str, Any],
    where: str,
    known_tasks: Collection[str] | None = (),
    name_of: Callable[[str], str] | None = None,
    given: Mapping[str, Any] = MappingProxyType({}),
) -> Study:
    """Validate a study with all its recipes; a :class:`PipelineError` names ``where`` and every mistake.

    Mistakes of single keys are reported before those that concern several keys or rows.

    Args:
        known_tasks: further tasks that rows and recipes may name, without effect; None for any task.
        name_of: returns the new name of a task.
        given: settings, flat or in their parts, that override every recipe and are neither tuned nor part of a grid.
    """
    values, given = dict(values), layered(given)
    named = [task for key in ("targets", "sources") for task in _listed(values.get(key))]
    allowed = None if known_tasks is None else [*named, *known_tasks, *_extra_tasks(values)]

    def task_of(task: str) -> str:
        if allowed is not None and task not in allowed:
            raise ValueError(f"neither a target nor a source ({', '.join(map(str, named))})")
        return name_of(task) if name_of else task

    try:
        _WrittenStudy.model_validate(values, context=task_of)
        rows = values.get("rows", {})
        values |= {"rows": {name: _written_out(name, rows) for name in rows}}
        if given:
            values = _overridden(values, given)
        study = Study.model_validate(_expand_grids(values), context=task_of)
    except ValidationError as error:
        raise_all(where, validation_problems(error))
        raise
    except ValueError as error:
        raise PipelineError(f"{where}: {error}") from None
    if "reference" not in values:
        known = (name for name in study.methods if name in (*KINDS, *study.rows))
        able = [name for name in known if not study.row(name).kind.is_by_source]
        study = study.model_copy(update={"reference": "full" if "full" in able else next(iter(able), "full")})
    no_targets = () if known_tasks is None else {*study.apart} - {*study.targets, *known_tasks}
    problems = [*_recipe_mistakes(study), *(f"apart.{task}: not a target" for task in sorted(no_targets))]
    raise_all(where, [*problems, *_mistakes(study, [name for name, row in values["rows"].items() if row.get("grid")])])
    return study


def with_task_names(study: Study, name_of: Callable[[str], str]) -> Study:
    """The same study with tasks renamed; a PipelineError if a list had both an alias and its task."""
    return parse_study(study.model_dump(), f"study {study.name}", known_tasks=None, name_of=name_of)


def _listed(value: Any) -> list[Any]:
    """``value`` if it is a list; else nothing, since validation reports it."""
    return list(value) if isinstance(value, list | tuple) else []


def _extra_tasks(values: Any) -> Iterator[Any]:
    """The tasks whose rows recipes add to others: what stands under ``extra``, wherever that is."""
    for key, value in table(values).items():
        if key == "extra":
            for source in _listed(value) or [value]:
                yield from [source["task"]] if "task" in table(source) else table(source)
        else:
            yield from _extra_tasks(value)


def _written_out(name: str, rows: Mapping[str, Table], copies: tuple[str, ...] = ()) -> Table:
    """A row as it would stand without ``like``.

    ``like = "ROW"`` copies another row except its title, its published names and whether it keeps its weights; the
    row's own keys override the copy. A row that is named after a method has that method.

    Args:
        copies: the rows that are like it, the last directly.
    """
    row: Table = {**({"method": name} if name in KINDS else {}), **rows.get(name, {})}
    if (base := row.pop("like", None)) is None:
        return row
    if base not in rows and base not in KINDS:
        raise ValueError(f"rows.{name}.like: there is no row '{base}'")
    if base in (*copies, name):
        raise ValueError(f"rows.{name}.like: rows cannot be like each other ({' -> '.join((*copies, name, base))})")
    copied = _written_out(base, rows, (*copies, name))
    copied = {key: value for key, value in copied.items() if key not in _NOT_COPIED}
    if "recipe" in row:
        row["recipe"] = layered(copied.get("recipe", {}), row["recipe"])
    if "tasks" in row:
        tasks = copied.get("tasks", {})
        row["tasks"] = {**tasks, **{task: layered(tasks.get(task, {}), own) for task, own in row["tasks"].items()}}
    return {**copied, **row}


def _overridden(values: Table, given: Table) -> Table:
    """The values with ``given`` (:func:`layered`) over every recipe; none of its keys is tuned or part of a grid."""

    def rest(part: Table, by_name: Collection[str] = ("tasks",)) -> Table:
        return part | {
            key: {name: without(own, given) for name, own in part[key].items()}
            if key in by_name
            else without(part[key], given)
            for key in ("recipe", "tasks", "tune", "grid")
            if part.get(key)
        }

    curve = {"curve": rest(values["curve"])} if values.get("curve") else {}
    recipe = layered(values.get("recipe", {}), given)
    rows = {name: rest(row) for name, row in values["rows"].items()}
    return {**rest(values, ("tasks", "tune")), "recipe": recipe, "rows": rows, **curve}


def _expand_grids(values: Table) -> Table:
    """The values with each ``[rows.NAME]`` that has a ``grid`` replaced by its cells.

    ``grid = { head_dropout = [0.1, 0.3], learning_rate = [1e-5, 2e-5] }`` makes ``NAME-1`` to ``NAME-4``, varying the
    last key fastest; their values are their titles. If ``methods``, ``curve.methods`` or the members of an ensemble
    name the row, they mean all its cells. A list in ``published`` gives each cell its name, or an empty text for none.
    """
    cells_of = {name: _cells(name, row) for name, row in values["rows"].items() if row.get("grid")}

    def spread(part: Any, *keys: str) -> Any:
        lists = {key: part[key] for key in keys if isinstance(part.get(key), list | tuple)} if part else {}
        return part and part | {
            key: [cell for name in names for cell in cells_of.get(name, [name])] for key, names in lists.items()
        }

    rows: Table = {}
    for name, row in values["rows"].items():
        row = {key: value for key, value in row.items() if key != "grid"}
        rows |= cells_of.get(name) or {name: spread(row, "of", "members")}
    return {**spread(values, "methods"), "rows": rows, "curve": spread(values.get("curve"), "methods")}


def _cells(name: str, row: Table) -> Table:
    grid, published = points(row["grid"]), row.get("published")
    if isinstance(published, list | tuple) and len(published) != len(grid):
        raise ValueError(f"rows.{name}.published: {len(published)} names for {len(grid)} cells of the grid")
    return {
        f"{name}-{number}": {
            **{key: value for key, value in row.items() if key != "grid"},
            "title": f"{row.get('title') or name}, {point_text(point)}",
            "recipe": layered(row.get("recipe", {}), point),
            "published": (published[number - 1] or None) if isinstance(published, list | tuple) else published,
        }
        for number, point in enumerate(grid, start=1)
    }


def _recipe_mistakes(study: Study) -> Iterator[str]:
    """Mistakes in the recipes of the study, its tasks, rows, rows on a task, and curve, each where it first shows."""
    shared, told = study.recipe, set[str]()
    recipes: list[tuple[str, tuple[Mapping[str, Any], ...]]] = [("recipe", ())]
    recipes += [(f"tasks.{task}", (own,)) for task, own in study.tasks.items()]
    for name, row in study.rows.items():
        recipes.append((f"rows.{name}.recipe", (row.recipe,)))
        recipes += [(f"rows.{name}.recipe on {task}", (own, row.recipe)) for task, own in study.tasks.items()]
        for task, own in row.tasks.items():
            recipes.append((f"rows.{name}.tasks.{task}", (study.tasks.get(task, {}), row.recipe, own)))
    recipes += [("curve.recipe", (study.curve.recipe,))] if study.curve else []
    for where, layers in recipes:
        for problem in Recipe.problems(layered(shared, *layers)):
            if problem not in told:
                told.add(problem)
                key, _, mistake = problem.partition(": ")
                if mistake == "unknown key" and key in Study.model_fields:  # a TOML header above captured it
                    problem = f"{key} belongs at the top level of the file, not in [{where}]"
                yield f"{where}: {problem}"


def _mistakes(study: Study, grids: Collection[str]) -> Iterator[str]:
    """Rows that do not exist (as the names of ``grids`` do not), do not fit each other, or have nothing to run on."""
    rows = {name: study.row(name) for name in (*KINDS, *study.rows) if name not in grids}
    known = [name for name in study.methods if name in rows]
    on_curve = (study.curve.methods or ()) if study.curve else ()
    by_title = {kind.title: method for method, kind in KINDS.items()}  # as in tables
    for key, names in (("methods", study.methods), ("curve.methods", on_curve)):
        for name in (name for name in names if name not in rows):
            near = nearest(name, (*rows, *by_title))
            meant = f"; did you mean '{by_title.get(near, near)}'?" if near else ""
            yield f"{key}: '{name}' is not a method ({', '.join(KINDS)}) or a row of the study{meant}"
    for name in dict.fromkeys((*study.rows, *known)):
        yield from (f"rows.{name}.{mistake}" for mistake in _row_mistakes(rows[name], rows))
    for name, row in rows.items():
        yield from (f"rows.{name}.tune.{mistake}" for mistake in _tune_mistakes(row, study.recipe))
    for name in known:
        yield from _mistakes_of_method(study, name, rows)
    if study.reference not in study.methods or (study.reference in rows and rows[study.reference].kind.is_by_source):
        yield f"reference: '{study.reference}' must be one of the methods, and not sequential"
    if study.primary is not None and not any(rows[name].kind.takes == "fusion" for name in known):
        yield "primary: no method is a fusion, so there is nothing to test: leave it out"
    if study.limit is not None and study.target_limit is not None and study.target_limit > study.limit:
        yield f"target_limit: {study.target_limit} is more than limit {study.limit}, which holds for all tasks"
    taken_in = (base for name in known for base in rows[name].own if base in rows)
    for name in dict.fromkeys((*known, *taken_in)):
        yield from _without_partners(study, name)
    if known == [*study.methods] and not any(map(study.targets_of, known)):
        yield "methods: no row has one of the targets, so there is nothing to run"


def _row_mistakes(row: Row, rows: Mapping[str, Row]) -> Iterator[str]:
    """Keys that do not fit the method, each other, or the ``rows`` that this row is built on."""
    kind, method = row.kind, row.method
    for key in SOME_KEYS:
        if key not in kind.keys and getattr(row, key) != Row.model_fields[key].default:
            having = " or ".join(name for name, other in KINDS.items() if key in other.keys)
            yield f"{'of (a list)' if key == 'members' else key}: only a row of {having} has it, not one of {method}"
    for key, before in (("order", row.order), ("through", row.through)):
        if before is not None and row.sources is not None:
            yield f"sources: {key} already names the tasks before each target: leave sources out"
    if row.order is not None and row.through is not None:
        yield "through: order already names the tasks before each target: leave one of the two out"
    for where, recipe in {"recipe": row.recipe, **{f"tasks.{task}": own for task, own in row.tasks.items()}}.items():
        rule = table(layered(recipe).get("merge")).get("rule")
        for mistake in _unlike_the_method(row, [recipe.get("trainable")], [rule]):
            yield f"{where}: {mistake}"
    base = rows.get(row.of or "")
    if row.of and row.built_on is None:
        yield f"of: {method} is built on no other row: leave it out"
    elif row.of and base is None:
        yield f"of: there is no row '{row.of}'"
    elif base is not None and base.method != row.built_on:
        yield f"of: '{row.of}' is a row of {base.method}, but {method} is built on {row.built_on}"
    elif base and base.built_on and (not row.experts if kind.merges else kind.is_one_adapter and not base.through):
        yield f"of: '{row.of}' is warm-started itself: name a row whose adapters are newly initialised"
    if row.variant_of and kind.takes == "fusion":
        other = rows.get(row.variant_of)
        if other is None or other.method != method or other is row:
            yield f"variant_of: '{row.variant_of}' is not another row of {method}"
        elif other.variant_of:
            yield f"variant_of: '{row.variant_of}' is itself a variant of '{other.variant_of}': name that one"
    for name in row.own if kind.combines else ():
        if name not in rows or rows[name].method != "adapter":
            yield f"own: '{name}' is not a row of adapters"
    if kind.artifact == "fusion":
        if (row.experts is None) == (table(layered(row.recipe).get("fusion")).get("form") == "experts"):
            yield "experts: give fusion = 'experts' in the recipe and the number of experts together"
        if row.experts and row.own:
            yield "own: all experts are of the target: leave it out"
    if kind.merges and row.experts and table(layered(row.recipe).get("merge")).get("rule", "mean") != "mean":
        yield "experts: ties merges what adapters changed since they were new: use merge = 'mean'"
    if kind.is_ensemble:
        yield from _member_mistakes(row, rows)
    for name in dict.fromkeys((row.of or "", *row.own)) if row.built_on else ():
        if name in rows and rows[name].backbone != row.backbone:
            mine, its = (f"'{given}'" if given else "the study's" for given in (row.backbone, rows[name].backbone))
            yield f"backbone: {mine}, but '{name}', which it is built on, has {its}: give both the same"


def _member_mistakes(row: Row, rows: Mapping[str, Row]) -> Iterator[str]:
    if not row.members:
        yield 'of: name the rows whose runs it joins, such as of = ["full", "multitask"]'
    if row.rule == "uniform" and row.most is not None:
        yield "most: uniform joins all members: leave it out, or choose another rule"
    for name in row.members:
        if name not in rows:
            yield f"of: there is no row '{name}'"
        elif rows[name].kind.is_ensemble:
            yield f"of: '{name}' is an ensemble itself"
        elif rows[name].by_source:
            yield f"of: '{name}' has a run for each source: name rows with one run, such as those with an order"
    for key in ("recipe", "tasks", "tune"):
        if getattr(row, key):
            yield f"{key}: an ensemble trains nothing"


def _unlike_the_method(row: Row, trainable: Sequence[Any], rules: Sequence[Any]) -> Iterator[str]:
    """Mistakes in these values of ``trainable`` and ``merge``, which the row's method would ignore or replace."""
    if any(value not in (None, *row.kind.trains) for value in trainable):
        yield f"a row of {row.method} trains {' or '.join(row.kind.trains)}"
    if row.kind.merges and "none" in rules:
        yield "a row of merge merges by mean or ties: leave merge = 'none' out"
    elif not row.kind.merges and any(rule not in (None, "none") for rule in rules):
        yield "only a row of merge merges adapters: leave merge out"


def _tune_mistakes(row: Row, shared: Mapping[str, Any]) -> Iterator[str]:
    """Tuned keys that the row also sets, and values that are invalid in its recipe over the ``shared`` one."""
    grid = row.tune or {}
    written = layered(row.recipe, *row.tasks.values())
    for key in grid:
        if has_key(written, key):
            yield f"{key}: the row's recipe sets it too: leave it out of one of them (tune = {{}} tunes nothing)"
    base = layered(shared, row.recipe)
    known = Recipe.problems(base)
    problems = {problem: None for point in row.trials for problem in Recipe.problems(layered(base, point))}
    yield from (problem for problem in problems if problem not in known)
    yield from (f"trainable: {mistake}" for mistake in _unlike_the_method(row, grid.get("trainable", ()), ()))
    yield from (f"merge: {mistake}" for mistake in _unlike_the_method(row, (), grid.get("merge", ())))


def _mistakes_of_method(study: Study, name: str, rows: Mapping[str, Row]) -> Iterator[str]:
    """What in a compared ensemble or merged adapter does not fit the study."""
    row, targets = rows[name], study.targets_of(name)
    if row.kind.merges and study.source_seed is not None and not row.experts:
        yield (
            f"source_seed: {name} merges adapters that started from the same weights, so their seed must be that of the"
            " target: leave source_seed out"
        )
    if not row.kind.is_ensemble:
        return
    joined = {member: study.targets_of(member) for member in row.members if member in rows}
    for member, own in joined.items():
        if not {*targets} & {*own}:
            yield f"rows.{name}.of: '{member}' has none of its targets"
    if bare := ", ".join(target for target in targets if not any(target in own for own in joined.values())):
        yield f"rows.{name}.targets: no member has {bare}: leave it out here, or add a member"
    if any(study.scoring.of(target) == "dev" for target in targets):
        yield (
            f"rows.{name}: members are chosen on other rows than those that are scored: write scoring = 'half', 'test',"
            " 'held-out' or 'train' into the study"
        )


def _without_partners(study: Study, name: str) -> Iterator[str]:
    """Targets for which a row that joins tasks has no other task."""
    row = study.row(name)
    alone = [target for target in study.targets_of(name) if row.joins_tasks and not study.partners(name, target)]
    if alone and not any(study.partners(name, target) for target in study.targets):
        yield f"targets: {name} ({row.kind.title}) needs at least two tasks: add a target or sources"
        return
    for target in alone:
        if target in study.apart:
            yield f"apart.{target}: leaves no source for {name}"
        elif row.kind.combines or row.through:
            key = "through" if row.through else "sources"
            yield f"rows.{name}.{key}: none for {target}: add one, or leave it out of targets"
