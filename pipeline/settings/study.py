"""Study: what is compared, rows of recipes x targets x seeds, read from a short TOML file."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from pipeline.data.tasks import Name
from pipeline.settings.recipe import Recipe
from pipeline.settings.study_grid import expand_grids
from pipeline.settings.study_mistakes import (
    mentioned_tasks,
    mistakes_between_keys,
    recipe_problems,
    repeats,
    stray_tasks,
)
from pipeline.settings.study_rows import MAY_TRAIN, TITLES, TRAINABLE, Curve, Published, Row, RowName, Rows
from pipeline.system.errors import PipelineError, raise_all, validation_problems
from pipeline.system.reading import present, read_toml


class Study(BaseModel):
    """What is compared. ``recipe`` holds for every row, ``tasks.<task>`` for one task, ``rows.<row>.recipe`` for one
    row, ``rows.<row>.tasks.<task>`` for one task in one row; the later over the former."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]*$", max_length=64)
    description: str = ""
    methods: tuple[RowName, ...] = Field(min_length=1, description="the rows, in the order of the tables")
    reference: RowName = Field("full", description="what the others are tested against")
    targets: tuple[Name, ...] = Field(min_length=1)
    sources: tuple[Name, ...] = Field((), description="tasks beside the targets that knowledge comes from")
    seeds: tuple[Annotated[int, Field(ge=0, lt=2**32)], ...] = Field(min_length=1)
    limit: Rows | None = Field(None, description="training rows of every task")
    target_limit: Rows | None = Field(None, description="training rows of the target, sources keep `limit`")
    dev_limit: Rows | None = Field(None, ge=2, description="dev rows of every task, the same for all runs")
    recipe: dict[str, Any] = {}
    tasks: dict[Name, dict[str, Any]] = {}
    rows: dict[RowName, Row] = {}
    curve: Curve | None = None
    published: Published | None = None
    cross_task: bool = Field(False, description="score every single-task model on the other targets too")

    @model_validator(mode="before")
    @classmethod
    def _name_methods(cls, values: Any) -> Any:
        """A row that is called like a method is one of that method."""
        rows = values.get("rows") if isinstance(values, Mapping) else None
        if not isinstance(rows, Mapping):
            return values
        named = {
            name: {"method": name, **row} if name in TRAINABLE and isinstance(row, Mapping) else row
            for name, row in rows.items()
        }
        return {**values, "rows": named}

    @classmethod
    def parse(cls, values: Mapping[str, Any], where: str, known_tasks: Collection[str] = ()) -> Self:
        """Validate a study with all its recipes; every mistake is reported at once.

        Args:
            known_tasks: tasks that rows and recipes may name beside the study's own; they count for nothing here.

        Raises:
            PipelineError: naming ``where`` and all mistakes.
        """
        values, problems = expand_grids(values)
        problems += repeats(values) + recipe_problems(values) + stray_tasks(values, known_tasks)
        methods = values.get("methods")
        if "reference" not in values and isinstance(methods, list | tuple) and "full" not in methods:
            # Something has to be compared against; of what there is, the first single method.
            values = {**values, "reference": next((method for method in methods if method != "sequential"), "full")}
        study = None
        try:
            study = cls.model_validate(dict(values))
        except ValidationError as error:
            problems = validation_problems(error) + problems
        raise_all(where, problems if study is None else problems + mistakes_between_keys(study))
        assert study is not None
        return study

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
        title = row.title or (TITLES[row.method] if name == row.method else name)
        return row.model_copy(update={"title": title, "of": row.of or row.built_on})

    def title(self, name: str, source: str = "") -> str:
        """What tables print for a row, or for a row of sequential tuning with one of its sources."""
        return self.row(name).title + (f", from {source}" if source else "")

    def published_names(self, name: str, source: str = "") -> tuple[str, ...]:
        """What the published tables call a row, or a row of sequential tuning with one of its sources."""
        published = self.row(name).published
        if isinstance(published, dict):
            return (published[source],) if source in published else ()
        return (published,) if isinstance(published, str) else published or ()

    def targets_of(self, name: str) -> tuple[str, ...]:
        """The targets that a row has runs for."""
        row = self.row(name)
        return tuple(
            target
            for target in self.targets
            if (row.targets is None or target in row.targets) and (row.order is None or target in row.order)
        )

    def partners(self, name: str, target: str) -> tuple[str, ...]:
        """The tasks beside ``target`` that a row takes knowledge from."""
        own = self.row(name).order or self.row(name).sources
        return tuple(task for task in self.all_tasks if task != target and (own is None or task in own))

    def curve_rows(self) -> dict[str, tuple[str, ...]]:
        """The rows of the curve, each with its targets."""
        curve = self.curve
        if curve is None or not self.curve_points:
            return {}
        return {
            name: tuple(t for t in self.targets_of(name) if curve.targets is None or t in curve.targets)
            for name in self.methods
            if name in curve.methods
        }

    def recipe_for(self, row: str, task: str, curve: bool = False) -> Recipe:
        """The recipe of a row on a task, in the main table or on the curve."""
        found = self.row(row)
        on_curve = self.curve.recipe if curve and self.curve else {}
        values = {**self.recipe, **self.tasks.get(task, {}), **found.recipe, **found.tasks.get(task, {}), **on_curve}
        where = f"study {self.name}, recipe of {row} on {task}"
        if values.get("trainable") not in MAY_TRAIN.get(found.method, ()):
            values["trainable"] = TRAINABLE[found.method]
        return Recipe.parse(values, where)

    def with_recipe(self, **values: Any) -> Self:
        """The same study with ``values`` in every recipe, over what the study says anywhere.

        Raises:
            PipelineError: the values are no recipe's.
        """
        if not values:
            return self
        changed = self.model_dump()

        def without(recipe: Mapping[str, Any]) -> dict[str, Any]:
            return {key: value for key, value in recipe.items() if key not in values}

        changed["recipe"] = {**self.recipe, **values}
        changed["tasks"] = {task: without(own) for task, own in self.tasks.items()}
        for part in (*changed["rows"].values(), *([changed["curve"]] if self.curve else [])):
            part["recipe"] = without(part["recipe"])
        for row in changed["rows"].values():
            row["tasks"] = {task: without(own) for task, own in row["tasks"].items()}
        return type(self).parse(changed, f"study {self.name}", mentioned_tasks(changed))

    def with_task_names(self, name_of: Callable[[str], str]) -> Self:
        """The same study with every task under the name that ``name_of`` gives it: an alias and its task are one.

        Raises:
            PipelineError: two names of a list are one task.
        """
        changed = self.model_dump()

        def rename(part: dict[str, Any] | None, *keys: str) -> None:
            for key in keys if part is not None else ():
                if part is not None and part[key] is not None:
                    part[key] = [name_of(name) for name in part[key]]

        rename(changed, "targets", "sources")
        rename(changed["curve"], "targets")
        for row in changed["rows"].values():
            rename(row, "targets", "sources", "order", "after")
            row["tasks"] = {name_of(name): recipe for name, recipe in row["tasks"].items()}
            if isinstance(row["published"], dict):
                row["published"] = {name_of(name): title for name, title in row["published"].items()}
        changed["tasks"] = {name_of(name): recipe for name, recipe in self.tasks.items()}
        if self.published is not None:
            changed["published"]["tasks"] = {key: name_of(name) for key, name in self.published.tasks.items()}
        return type(self).parse(changed, f"study {self.name}", mentioned_tasks(changed))

    def has(self, name: str) -> bool:
        """Whether there is a row called ``name``."""
        return name in self.rows or name in TRAINABLE


def read_study(name: str, folder: Path, overrides: Mapping[str, Any]) -> Study:
    """The study called ``name`` in ``folder``, or in the file it names, with ``overrides`` in place of its keys.

    ``curve`` may be overridden by a bool: False for none, True for the study's own or the usual one; ``curve_rows``
    are the points in place of its own. What the file says about tasks, rows and sizes that the overrides leave out
    holds for nothing.

    Raises:
        PipelineError: there is no such study, or it has mistakes.
    """
    file = Path(name) if name.endswith(".toml") else folder / f"{name}.toml"
    if not present(file):
        known = ", ".join(study_names(folder))
        raise PipelineError(f"unknown study '{name}': name one of {known}, or a TOML file")
    values = read_toml(file)
    values.setdefault("name", file.stem)
    chosen = {**values, **overrides}
    points = chosen.pop("curve_rows", None)
    if isinstance(overrides.get("curve"), bool):
        chosen["curve"] = values.get("curve", {}) if overrides["curve"] else None
    if points is not None:
        if overrides.get("curve") is False:
            raise PipelineError("--curve-rows with --no-curve: give one of them")
        own = chosen.get("curve")
        chosen["curve"] = {**(own if isinstance(own, Mapping) else {}), "rows": points}
    left_out = "methods" in overrides and values.get("reference") not in overrides["methods"]
    if left_out and "reference" not in overrides:
        chosen.pop("reference", None)
    own = [values.get(key) for key in ("targets", "sources")]
    return Study.parse(chosen, str(file), [task for tasks in own if isinstance(tasks, list) for task in tasks])


def study_names(folder: Path) -> list[str]:
    return sorted(file.stem for file in folder.glob("*.toml"))
