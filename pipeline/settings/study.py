"""Study: what is compared, rows of recipes on targets and seeds, read from a short TOML file."""

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from difflib import get_close_matches
from types import MappingProxyType
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, field_validator

from pipeline.settings.fields import RowName, Rows, TaskName, Whole, no_repeats
from pipeline.settings.grid import Grid
from pipeline.settings.raw import (
    Table,
    expand_grids,
    expand_likes,
    listed,
    override_recipes,
    recipe_problems,
    stray_tasks,
)
from pipeline.settings.recipe import Recipe, has_key, layered, table
from pipeline.settings.resources import Resources
from pipeline.settings.rows import TRAITS, Method, Row
from pipeline.settings.sections import Curve, Published, ScoredRows
from pipeline.system.errors import raise_all, validation_problems

Seed = Annotated[Whole, Field(ge=0, lt=2**32)]
_FOLDERS = ("runs", "ensembles")
"""What else stands in ``--reports``, beside a folder for each study."""
_NAMED = 4
"""Most rows with an equal number of trials that a sentence names one by one."""


def _file_name(name: str) -> str:
    """The name of a study, which is that of a folder too."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9_-]*", name):
        raise ValueError(
            'a study has the name of its file, or name = "..." in it: lower-case letters, digits, - and _, beginning'
            " with a letter or digit"
        )
    return name


class Study(BaseModel):
    """What is compared.

    Of recipes, the later of these overrides the former: ``recipe``, ``tasks.<task>``, ``rows.<row>.recipe``,
    ``rows.<row>.tasks.<task>``, on the curve ``curve.recipe``, a trial's values of what is tuned.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Annotated[str, Field(max_length=64), AfterValidator(_file_name)]
    description: str = Field("", description="shown by `studies list` and on the page")
    methods: tuple[RowName, ...] = Field(min_length=1, description="the rows, in the order of the tables")
    reference: RowName = Field(
        "full",
        description="the row that the others are tested against; without full, the first row that is not sequential",
    )
    targets: tuple[TaskName, ...] = Field(min_length=1, description="tasks that each row is trained for and scored on")
    sources: tuple[TaskName, ...] = Field((), description="more tasks to transfer from, besides the targets")
    apart: dict[TaskName, tuple[TaskName, ...]] = Field(
        {}, description="target -> tasks that it must not use, such as those that share text with its dev"
    )
    seeds: tuple[Seed, ...] = Field(
        min_length=1, description="seeds of initial weights, samples, order and dropout; one run each"
    )
    source_seed: Seed | None = Field(None, description="the seed of all runs on other tasks; unset: the target's own")
    limit: Rows | None = Field(None, description="training rows of every task")
    target_limit: Rows | None = Field(None, description="training rows of the target; sources keep `limit`")
    dev_limit: Rows | None = Field(
        None, ge=2, description="maximum validation rows, and test rows unless these are held out of train"
    )
    scoring: ScoredRows = Field(ScoredRows(), description="which rows are validation rows, and which are test rows")
    recipe: dict[str, Any] = Field({}, description="the recipe of every row")
    tasks: dict[TaskName, dict[str, Any]] = Field({}, description="overrides that recipe, for one task")
    tune: dict[Method, Grid] = Field({}, description="what the rows of a method tune, unless they say otherwise")
    tune_on: Literal["first seed", "each seed"] = Field(
        "first seed", description="the seeds on which a row's trials run"
    )
    rows: dict[RowName, Row] = Field(
        {}, description="rows that are more than a method's name; a row may copy another with `like`"
    )
    curve: Curve | None = Field(None, description="the same rows with few training rows of the target")
    published: Published | None = Field(None, description="a report's tables, shown beside the study's own")
    cross_task: bool = Field(False, description="also score every single-task model on the other targets")
    resources: Resources = Field(Resources(), description="the resources of each run on a cluster")

    _no_repeats = field_validator("methods", "targets", "sources", "seeds")(no_repeats)

    @classmethod
    def parse(
        cls,
        values: Mapping[str, Any],
        where: str,
        known_tasks: Collection[str] | None = (),
        name_of: Callable[[str], str] | None = None,
        given: Mapping[str, Any] = MappingProxyType({}),
    ) -> Self:
        """Validate a study with all its recipes; a :class:`PipelineError` names ``where`` and every mistake.

        Args:
            known_tasks: tasks beside the study's own that rows and recipes may name, without effect; None: any task.
            name_of: gives every task its new name.
            given: settings, flat or in their parts, in place of what any recipe says of them; they are not tuned.
        """
        given = layered(given)
        values, bases, wrong_likes = expand_likes(values)
        values = override_recipes(values, given)
        values, grids, wrong_grids = expand_grids(values)
        problems = [*wrong_likes, *wrong_grids, *recipe_problems(values, bases), *stray_tasks(values, known_tasks)]
        if "reference" not in values:
            values = {**values, "reference": _usual_reference(values)}
        try:
            study = cls.model_validate(values, context=name_of)
        except ValidationError as error:
            raise_all(where, validation_problems(error) + problems)
            raise
        if not wrong_likes and not wrong_grids:  # else the rows are not those that were meant
            problems += [*study._grids_named(grids)] or [*study._grids_given(grids, given), *study._mistakes()]
            no_targets = () if known_tasks is None else {*study.apart} - {*study.targets, *known_tasks}
            problems += [f"apart.{task}: not a target" for task in sorted(no_targets)]
            problems = problems or [*study._grids_on_curve(grids)]  # which asks for recipes
        raise_all(where, problems)
        return study

    def _mistakes(self) -> list[str]:
        """Rows that do not exist, that do not fit each other, or that have nothing to run on."""
        rows = {name: self.row(name) for name in (*TRAITS, *self.rows)}
        known = [name for name in self.methods if name in rows]
        taken_in = (own for name in known for own in rows[name].own if own in rows)
        return [
            *self._unknown(rows),
            *(
                f"rows.{name}.{each}"
                for name in dict.fromkeys((*self.rows, *known))
                for each in rows[name].mistakes(rows)
            ),
            *(f"rows.{name}.tune.{each}" for name, row in rows.items() for each in row.tune_mistakes(self.recipe)),
            *(
                each
                for name in known
                if rows[name].method == "ensemble"
                for each in self._ensemble_mistakes(name, rows)
            ),
            *self._mistakes_of_all(known),
            *(each for name in dict.fromkeys((*known, *taken_in)) for each in self._without_partners(name)),
            *self._nothing_to_run(known),
        ]

    def _grids_named(self, grids: Mapping[str, Collection[str]]) -> Iterator[str]:
        """Keys that name one of the ``grids``, which have these cells, where they need one row."""
        named = [("reference", self.reference)]
        for name in dict.fromkeys((*self.rows, *self.methods)):
            if name in self.rows or name in TRAITS:
                row = self.row(name)
                bases = {"of": (row.of,), "own": row.own, "variant_of": (row.variant_of,)}
                named += [(f"rows.{name}.{key}", base) for key, names in bases.items() for base in names if base]
        for key, name in named:
            if name in grids:
                cells = [*grids[name]]
                span = " to ".join(dict.fromkeys((cells[0], cells[-1])))
                yield f"{key}: '{name}' is a grid ({span}): name one of its rows, or write tune instead of grid"

    def _grids_given(self, grids: Mapping[str, Mapping[str, Table]], given: Mapping[str, Any]) -> Iterator[str]:
        """Keys that ``given`` sets for all rows, and that a grid which the study uses sets for each of its cells."""
        used, more = set[str](), {*self.methods}
        while more:
            used |= more
            rows = [self.row(name) for name in more if name in self.rows or name in TRAITS]
            more = {name for row in rows for name in (row.of, *row.own, *row.members) if name} - used
        for name, key in _set_over(grids, used, given):
            yield f"{key}: rows.{name} is a grid of it: leave the option out, or the row (--methods)"

    def _grids_on_curve(self, grids: Mapping[str, Mapping[str, Table]]) -> Iterator[str]:
        """Keys that the curve's recipe sets for all rows, and a grid for its cells, if the curve trains one of them."""
        if self.curve is None or not grids:
            return
        trained = set[str]()
        for name, targets in self.curve_rows().items():
            for each in self.row(name).members or (name,):
                for target in {*targets} & {*self.targets_of(each)}:
                    trained |= {each, *self.bases_on(each, target)}
        for name, key in _set_over(grids, trained, layered(self.curve.recipe)):
            yield f"rows.{name}.grid.{key}: curve.recipe sets it for all its cells: leave it out of one of them"

    def _unknown(self, rows: Collection[str]) -> Iterator[str]:
        on_curve = self.curve.methods if self.curve else None
        named = (("methods", self.methods), ("curve.methods", on_curve or ()))
        there, known = ", ".join(TRAITS), (*TRAITS, *self.rows)
        for key, names in named:
            for name in names:
                if name not in rows:
                    near = "".join(f"; did you mean '{each}'?" for each in get_close_matches(name, known, n=1))
                    yield f"{key}: '{name}' is not a method ({there}) or a row of the study{near}"

    def _ensemble_mistakes(self, name: str, rows: Mapping[str, Row]) -> Iterator[str]:
        """Members and targets that have none of each other, and a study without test rows apart from dev."""
        targets, members = self.targets_of(name), [member for member in rows[name].members if member in rows]
        for member in members:
            if not {*targets} & {*self.targets_of(member)}:
                yield f"rows.{name}.of: '{member}' has none of its targets"
        joined = {target for member in members for target in self.targets_of(member)}
        if bare := ", ".join(target for target in targets if target not in joined):
            yield f"rows.{name}.targets: no member has {bare}: leave it out here, or add a member"
        if any(self.scoring.of(target) == "dev" for target in targets):
            yield (
                f"rows.{name}: members are chosen on other rows than those that are scored: write scoring = 'half',"
                " 'test', 'held-out' or 'train' into the study"
            )

    def _mistakes_of_all(self, known: Sequence[str]) -> Iterator[str]:
        """Keys of the study that its rows cannot have."""
        by_source = [name for name in known if TRAITS[self.row(name).method].by_source]
        if self.reference not in self.methods or self.reference in by_source:
            yield f"reference: '{self.reference}' must be one of the methods, and not sequential"
        for name in known if self.source_seed is not None else ():
            if self.row(name).method == "merge":
                yield (
                    f"source_seed: {name} merges adapters that started from the same weights, so their seed must be"
                    " that of the target: leave source_seed out"
                )
        if self.limit is not None and self.target_limit is not None and self.target_limit > self.limit:
            yield f"target_limit: {self.target_limit} is more than limit {self.limit}, which holds for all tasks"

    def _without_partners(self, name: str) -> Iterator[str]:
        """Targets for which a row that joins tasks has no other."""
        row = self.row(name)
        alone = [target for target in self.targets_of(name) if row.joins and not self.partners(name, target)]
        if alone and not any(self.partners(name, target) for target in self.targets):
            yield f"targets: {row.joins} needs at least two tasks ({name}); add a target or sources"
            return
        for target in alone:
            if target in self.apart:
                yield f"apart.{target}: leaves no source for {name}"
            elif TRAITS[row.method].fuses or row.through:
                key = "through" if row.through else "sources"
                yield f"rows.{name}.{key}: none for {target}: add one, or leave it out of targets"

    def _nothing_to_run(self, known: Sequence[str]) -> Iterator[str]:
        if known == [*self.methods] and not any(self.targets_of(name) for name in known):
            yield "methods: no row has one of the targets, so there is nothing to run"

    @field_validator("name")
    @classmethod
    def _has_a_folder_of_its_own(cls, name: str) -> str:
        if name in _FOLDERS:
            raise ValueError(f"'{name}' is a folder of --reports for something else: choose another name")
        return name

    @property
    def all_tasks(self) -> tuple[str, ...]:
        """Targets and sources, each once."""
        return tuple(dict.fromkeys((*self.targets, *self.sources)))

    @property
    def rows_of_target(self) -> int | None:
        """Training rows of a target in the main table; None: all."""
        return self.target_limit or self.limit

    @property
    def curve_points(self) -> tuple[int, ...]:
        """Training rows of the target at each point of the curve; the main table is the last, and not among them."""
        bound = self.rows_of_target
        return tuple(n for n in sorted(self.curve.rows) if bound is None or n < bound) if self.curve else ()

    def row(self, name: str) -> Row:
        """The row called ``name``, or the method of that name with nothing of its own; title and base filled in."""
        row = self.rows.get(name) or Row.model_validate({"method": name})
        title = row.title or (TRAITS[row.method].title if name == row.method else name)
        tune = self.tune.get(row.method, {}) if row.tune is None else row.tune
        return row.model_copy(update={"title": title, "of": row.of or row.built_on, "tune": tune})

    @property
    def unequal_trials(self) -> str:
        """A sentence, if the rows do not have as many trials each; else empty."""
        titles = defaultdict[int, list[str]](list)
        for name in self.methods:
            titles[self.trials_on_target(name)].append(self.title(name))
        if len(titles) < 2:
            return ""
        most = max(titles, key=lambda count: len(titles[count]))
        others = len(titles[most])
        # A title may have commas, so each has its number.
        each = [f"{title} {n}" for n in sorted(titles) for title in titles[n] if n != most or others <= _NAMED]
        trials = "; ".join([*each, f"the {others} others {most} each"] if others > _NAMED else each)
        return (
            f"Rows had different numbers of trials ({trials}): the best of more trials scores higher by chance alone."
        )

    def trials_on_target(self, name: str) -> int:
        """Runs on a target that a row is chosen from: its trials, and those of what it starts from or fuses there.

        Of an ensemble those of all its members.
        """
        return sum(self.trials_by_row(name).values())

    def trials_by_row(self, name: str, target: str | None = None) -> dict[str, int]:
        """:meth:`trials_on_target` by the row whose runs they are, so that what several rows share can count once.

        Args:
            target: count what is taken there; None: on any of the row's targets.
        """
        row, targets = self.row(name), self.targets_of(name) if target is None else (target,)
        if row.method == "ensemble":
            joined = [member for member in row.members if target is None or target in self.targets_of(member)]
            return {key: count for member in joined for key, count in self.trials_by_row(member, target).items()}
        bases = {base: len(self.row(base).trials) for each in targets for base in self.bases_on(name, each)}
        taken = bases if sum(bases.values()) > 1 else {}  # one run is no choice
        return {name: len(row.trials), **taken}

    def bases_on(self, name: str, target: str) -> tuple[str, ...]:
        """The rows whose trials on a target count as a row's: of the best it takes the target's adapter, or the head.

        What it is built on otherwise was tuned on other tasks.
        """
        row = self.row(name)
        if TRAITS[row.method].fuses and not self.fuses_own(name, target):
            return ()
        if TRAITS[row.method].fuses or row.method == "full":
            return row.own or ((row.of,) if row.of else ())
        return ()

    def fuses_own(self, name: str, target: str, curve: bool = False) -> bool:
        """Whether a row of fusion takes the target's adapter of stage one, in one of its trials at least."""
        return any(self.recipe_for(name, target, curve, trial).fuses_own for trial in self.row(name).trials)

    def title(self, name: str, source: str = "") -> str:
        """What tables print for a row; with ``source``, for a row of sequential fine-tuning from it.

        No two rows have the same: one with a single source names it, and what is still alike is told by its name.
        """
        title, own = self._titled(name, source), self._titled(name)
        alike = any(self._titled(other) in (title, own) for other in self.methods if other != name)
        return f"{title} ({name})" if alike else title

    def _titled(self, name: str, source: str = "") -> str:
        row = self.row(name)
        if not source and row.by_source and row.sources is not None and len(row.sources) == 1:
            (source,) = row.sources
        return row.title + (f", from {source}" if source else "")

    def published_names(self, name: str, source: str = "") -> tuple[str, ...]:
        """What the published tables call a row, or a row of sequential fine-tuning with one of its sources."""
        published = self.row(name).published or ()
        names = published.get(source, ()) if isinstance(published, dict) else published
        return (names,) if isinstance(names, str) else names

    def targets_of(self, name: str) -> tuple[str, ...]:
        """The targets that a row has runs for."""
        limits = (self.row(name).targets, self.row(name).order)
        return tuple(task for task in self.targets if all(only is None or task in only for only in limits))

    def partners(self, name: str, target: str) -> tuple[str, ...]:
        """The tasks beside ``target`` that a row takes knowledge from."""
        own = self.row(name).order or self.row(name).through or self.row(name).sources
        without = {target, *self.apart.get(target, ())}
        return tuple(task for task in self.all_tasks if task not in without and (own is None or task in own))

    def turn(self, name: str, target: str) -> tuple[str, ...]:
        """The tasks that one model of a row goes through, where it goes through several; else none."""
        row, before = self.row(name), self.partners(name, target)
        if row.through is None:
            return row.order or ()
        return (*(task for task in row.through if task in before), target)

    def curve_rows(self) -> dict[str, tuple[str, ...]]:
        """The rows of the curve, each with its targets."""
        curve = self.curve
        if curve is None or not self.curve_points:
            return {}
        return {
            name: tuple(t for t in self.targets_of(name) if curve.targets is None or t in curve.targets)
            for name in self.methods
            if curve.methods is None or name in curve.methods
        }

    def recipe_for(self, row: str, task: str, curve: bool = False, trial: Mapping[str, Any] | None = None) -> Recipe:
        """The recipe of a row on a task, in the main table or on the curve, of one of its trials or of none."""
        own, trains = self.row(row), TRAITS[self.row(row).method].trains
        on_curve = self.curve.recipe if curve and self.curve else {}
        values = layered(
            self.recipe, self.tasks.get(task, {}), own.recipe, own.tasks.get(task, {}), on_curve, trial or {}
        )
        if values.get("trainable") not in trains[1:]:
            values["trainable"] = trains[0]
        if own.method != "merge":
            values.pop("merge", None)
        elif table(values.get("merge")).get("rule", "none") == "none":
            values = layered(values, {"merge": "mean"})
        return Recipe.parse(values, f"study {self.name}, recipe of {row} on {task}")

    def with_task_names(self, name_of: Callable[[str], str]) -> Self:
        """The same study with tasks renamed, an alias and its task to one; a PipelineError if a list had both."""
        return self.parse(self.model_dump(), f"study {self.name}", known_tasks=None, name_of=name_of)


def _set_over(
    grids: Mapping[str, Mapping[str, Table]], used: Collection[str], recipe: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    """The names of the ``grids`` with a cell that is ``used``, each with a key of theirs that ``recipe`` sets too."""
    for name, cells in grids.items():
        keys = {key for point in cells.values() for key in point if has_key(recipe, key)}
        yield from ((name, key) for key in sorted(keys) if not cells.keys().isdisjoint(used))


def _usual_reference(values: Mapping[str, Any]) -> Any:
    """The row that the tests compare with where the study does not say: full, else the first that is not sequential.

    Args:
        values: raw, with every row written out.
    """
    rows = table(values.get("rows"))
    names = map(str, listed(values.get("methods")))
    method_of = {name: str(table(rows.get(name)).get("method", name)) for name in names}
    sequential = [method for method, traits in TRAITS.items() if traits.by_source]
    able = [name for name, method in method_of.items() if method not in sequential]
    return "full" if "full" in able else next(iter(able), "full")
