"""Study: compares rows of recipes on targets and seeds; and its tables besides the rows."""

import re
from collections import defaultdict
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, field_validator, model_validator

from pipeline.settings.kinds import Grid, Method, Row, RowName, Rows, TaskName, no_repeats
from pipeline.settings.parts import Real, Whole
from pipeline.settings.recipe import Recipe, layered, table

ExecutorName = Literal["local", "ray", "slurm"]
ScoredOn = Literal["half", "test", "held-out", "train", "dev"]
Opponent = Literal["the target alone", "sequential fine-tuning", "one adapter", "the best method without fusion"]
"""Kinds of methods without fusion, as :mod:`pipeline.reporting.opponents` tells them apart."""


class Curve(BaseModel, frozen=True, extra="forbid"):
    """Low-resource curves: trains the rows again on few rows of the target. Sources keep all of theirs."""

    rows: tuple[Rows, ...] = Field((100, 300, 1000), min_length=1, description="training rows of the target")
    methods: tuple[RowName, ...] | None = Field(
        None, min_length=1, description="the rows that have a curve; unset: all"
    )
    targets: tuple[TaskName, ...] | None = Field(
        None, min_length=1, description="targets that have a curve; unset: all"
    )
    recipe: dict[str, Any] = Field({}, description="overrides the rows' recipes: few rows need more epochs")

    _no_repeats = field_validator("rows", "methods", "targets")(no_repeats)


class ScoredRows(BaseModel, frozen=True, extra="forbid"):
    """Which labelled rows select, and which are scored.

    ``half``: one half of dev selects, the other is scored. ``test``: dev selects, the labelled test split is scored.
    ``held-out``: dev selects, rows of train that no task trains on are scored. ``train``: a part of the training rows
    selects, dev is scored. ``dev``: dev selects and is scored.
    """

    rows: ScoredOn = Field("dev", description="which rows are scored")
    tasks: dict[TaskName, ScoredOn] = Field({}, description="the same for one task")
    share: Real = Field(
        0.2, gt=0, lt=1, description="train: share of the training rows (after limits) that are validation rows"
    )
    size: Rows = Field(1000, description="held-out: number of training rows that are held out, at most half of them")
    seed: Whole = Field(0, ge=0, lt=2**32, description="seed of the split, which is the same for all rows and seeds")

    @model_validator(mode="before")
    @classmethod
    def _from_word(cls, value: Any) -> Any:
        """``scoring = "half"`` is short for ``scoring = { rows = "half" }``."""
        return {"rows": value} if isinstance(value, str) else value

    def of(self, *names: str) -> ScoredOn:
        """The scored rows of the task with these names."""
        return next((self.tasks[name] for name in names if name in self.tasks), self.rows)


class PublishedCurve(BaseModel, frozen=True, extra="forbid"):
    """The row and task whose epochs are printed beside a published table of epochs."""

    row: RowName = Field(description="the study's row")
    task: TaskName = Field(description="the target")


class Published(BaseModel, frozen=True, extra="forbid"):
    """Tables of a report, from ``reporting/published/values.csv``, to print beside the study's own."""

    report: str = Field(description="the report's name in values.csv")
    table: str | Annotated[tuple[str, ...], Field(min_length=1)] = Field(
        description="a table of the report, or several"
    )
    split: str = Field("dev", description="the split of the tables' scores")
    curves: dict[str, PublishedCurve] = Field({}, description="table of epochs -> its row and target")
    tasks: dict[str, TaskName] = Field(min_length=1, description="metric column of the table -> task")

    @property
    def tables(self) -> tuple[str, ...]:
        return (self.table,) if isinstance(self.table, str) else self.table


class Resources(BaseModel, frozen=True, extra="forbid"):
    """The resources for every cell under ``--executor ray`` and ``slurm``; they do not affect a run's identity."""

    cpus: Whole = Field(1, ge=1, le=4096, description="cores, and threads of torch")
    gpus: Real = Field(
        0, ge=0, le=64, description="a share of one GPU (0.25: four cells on a GPU), or several whole ones"
    )
    memory_gb: Real | None = Field(None, gt=0, le=10**5, description="main memory in GiB; not set: not counted")
    retries: Whole = Field(3, ge=0, le=1000, description="how often a cell whose worker is lost is resumed elsewhere")
    minutes: Whole = Field(
        60 * 24, ge=1, le=60 * 24 * 365, description="slurm: time limit of a job; its cell resumes in the next"
    )
    partition: str | None = Field(None, pattern=r"^\S+$", max_length=200, description="slurm: where to queue")

    @field_validator("gpus")
    @classmethod
    def _share_or_whole(cls, value: float) -> float:
        if value > 1 and value != int(value):
            raise ValueError("give a share of one GPU (0 to 1) or a whole number")
        return value

    @property
    def processes(self) -> int:
        """How many processes train a cell together: one per GPU."""
        return max(1, int(self.gpus))


Seed = Annotated[Whole, Field(ge=0, lt=2**32)]
_FOLDERS = ("runs", "ensembles")
"""Names in ``--reports`` that no study may have, since each study has a folder there."""
_NAMED = 4
"""Maximum number of rows with an equal number of trials that a sentence names one by one."""


class Study(BaseModel, frozen=True, extra="forbid"):
    """A comparison.

    Recipes override each other in this order: ``recipe``, ``tasks.<task>``, ``rows.<row>.recipe``,
    ``rows.<row>.tasks.<task>``, on the curve ``curve.recipe``, and the tuned values of a trial.
    """

    name: Annotated[str, Field(max_length=64)]
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
    looks: Whole = Field(
        1, ge=1, le=100, description="1, plus 1 each time seeds are added after results were seen; corrects all tests"
    )
    primary: Opponent | None = Field(
        None,
        description="the one kind of method that fusions are tested against, decided before the runs; unset: all four",
    )
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

    @field_validator("name")
    @classmethod
    def _has_a_folder_of_its_own(cls, name: str) -> str:
        if not re.fullmatch(r"[a-z0-9][a-z0-9_-]*", name):
            raise ValueError(
                'a study has the name of its file, or name = "..." in it: lower-case letters, digits, - and _,'
                " beginning with a letter or digit"
            )
        if name in _FOLDERS:
            raise ValueError(f"'{name}' is a folder of --reports for something else: choose another name")
        return name

    @property
    def heading(self) -> str:
        """The title of its page: its name, or for the default study, which may have any tasks, its targets."""
        return ", ".join(self.targets) if self.name == "default" else self.name

    @property
    def all_tasks(self) -> tuple[str, ...]:
        """Targets and sources, once each."""
        return tuple(dict.fromkeys((*self.targets, *self.sources)))

    @property
    def rows_of_target(self) -> int | None:
        """Training rows of a target in the main table; None for all."""
        return self.target_limit or self.limit

    @property
    def curve_points(self) -> tuple[int, ...]:
        """Training rows of the target at each point of the curve, without the last one, which is the main table."""
        bound = self.rows_of_target
        return tuple(n for n in sorted(self.curve.rows) if bound is None or n < bound) if self.curve else ()

    def row(self, name: str) -> Row:
        """The row called ``name``, or the method of that name with its defaults; with title and base filled in."""
        row = self.rows.get(name) or Row.model_validate({"method": name})
        title = row.title or (row.kind.title if name == row.method else name)
        tune = self.tune.get(row.method, {}) if row.tune is None else row.tune
        return row.model_copy(update={"title": title, "of": row.of or row.built_on, "tune": tune})

    @property
    def unequal_trials(self) -> str:
        """A sentence if rows had different numbers of trials; otherwise empty."""
        titles = defaultdict[int, list[str]](list)
        for name in self.methods:
            titles[self.trials_on_target(name)].append(self.title(name))
        if len(titles) < 2:
            return ""
        most = max(titles, key=lambda count: len(titles[count]))
        others = len(titles[most])
        # A title may contain commas, so each gets its number.
        named = [f"{title} {n}" for n in sorted(titles) for title in titles[n] if n != most or others <= _NAMED]
        trials = "; ".join([*named, f"the {others} others {most} each"] if others > _NAMED else named)
        return f"Methods had different numbers of trials ({trials}): the best of more trials scores higher by chance."

    def trials_on_target(self, name: str) -> int:
        """How many trials on a target led to a row, including those of the adapter or head that it is built on.

        For an ensemble, the trials of all its members.
        """
        return sum(self.trials_by_row(name).values())

    def trials_by_row(self, name: str, target: str | None = None) -> dict[str, int]:
        """:meth:`trials_on_target` by the row that ran them, so that trials that rows share can be counted once.

        Args:
            target: count the trials there; None for any of the row's targets.
        """
        row, targets = self.row(name), self.targets_of(name) if target is None else (target,)
        if row.kind.is_ensemble:
            joined = [member for member in row.members if target is None or target in self.targets_of(member)]
            counts = {key: count for member in joined for key, count in self.trials_by_row(member, target).items()}
            if row.rule == "uniform":  # selects nothing itself
                return {name: 1} if {*counts.values()} == {1} else counts
            again = len(joined) * ((row.experts or 1) - 1)
            return counts | ({name: again} if again else {})
        bases = {base: len(self.row(base).trials) for task in targets for base in self.bases_on(name, task)}
        taken = bases if sum(bases.values()) > 1 else {}  # a single run was not selected
        return {name: len(row.trials), **taken}

    def bases_on(self, name: str, target: str) -> tuple[str, ...]:
        """The rows whose best trial on a target gives a row its adapter or head, so that their trials count for it too.

        Adapters of other tasks do not count, because they were tuned on those tasks.
        """
        row = self.row(name)
        if not (self.fuses_own(name, target) if row.kind.combines else row.kind.takes == "head"):
            return ()
        return row.own or ((row.of,) if row.of else ())

    def fuses_own(self, name: str, target: str, curve: bool = False) -> bool:
        """Whether a fusion row uses the target's adapter of stage one in at least one of its trials."""
        return any(self.recipe_for(name, target, curve, trial).form.fuses_own for trial in self.row(name).trials)

    def title(self, name: str, source: str = "") -> str:
        """What tables print for a row; with ``source``, for a row of sequential fine-tuning from it.

        Titles are unique: a row with a single source names it, and rows that are still alike add their names.
        """
        title, plain = self._titled(name, source), self._titled(name)
        alike = any(self._titled(other) in (title, plain) for other in self.methods if other != name)
        return f"{title} ({name})" if alike else title

    def _titled(self, name: str, source: str = "") -> str:
        row = self.row(name)
        if not source and row.by_source and row.sources is not None and len(row.sources) == 1:
            (source,) = row.sources
        return row.title + (f", from {source}" if source else "")

    def published_names(self, name: str, source: str = "") -> tuple[str, ...]:
        """The name in published tables of a row, or of a row of sequential fine-tuning with one of its sources."""
        published = self.row(name).published or ()
        names = published.get(source, ()) if isinstance(published, dict) else published
        return (names,) if isinstance(names, str) else names

    def targets_of(self, name: str) -> tuple[str, ...]:
        """The targets on which a row has runs."""
        limits = (self.row(name).targets, self.row(name).order)
        return tuple(task for task in self.targets if all(only is None or task in only for only in limits))

    def partners(self, name: str, target: str) -> tuple[str, ...]:
        """The tasks besides ``target`` that a row transfers from."""
        row = self.row(name)
        only = row.order or row.through or row.sources
        without = {target, *self.apart.get(target, ())}
        return tuple(task for task in self.all_tasks if task not in without and (only is None or task in only))

    def turn(self, name: str, target: str) -> tuple[str, ...]:
        """The tasks on which a row tunes one model in turn; empty if there is only one."""
        row, before = self.row(name), self.partners(name, target)
        if row.through is None:
            return row.order or ()
        return (*(task for task in row.through if task in before), target)

    def curve_rows(self) -> dict[str, tuple[str, ...]]:
        """The rows of the curve with their targets."""
        curve = self.curve
        if curve is None or not self.curve_points:
            return {}
        return {
            name: tuple(t for t in self.targets_of(name) if curve.targets is None or t in curve.targets)
            for name in self.methods
            if curve.methods is None or name in curve.methods
        }

    def recipe_for(self, row: str, task: str, curve: bool = False, trial: Mapping[str, Any] | None = None) -> Recipe:
        """The recipe of a row on a task, in the main table or on the curve, with or without the values of a trial."""
        line = self.row(row)
        on_curve = self.curve.recipe if curve and self.curve else {}
        values = layered(
            self.recipe, self.tasks.get(task, {}), line.recipe, line.tasks.get(task, {}), on_curve, trial or {}
        )
        if values.get("trainable") not in line.kind.trains[1:]:
            values["trainable"] = line.kind.trains[0]
        if not line.kind.merges:
            values.pop("merge", None)
        elif table(values.get("merge")).get("rule", "none") == "none":
            values = layered(values, {"merge": "mean"})
        return Recipe.parse(values, f"study {self.name}, recipe of {row} on {task}")
