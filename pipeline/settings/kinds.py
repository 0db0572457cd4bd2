"""Row: a line of the comparison; the kinds of rows, and what each trains and takes; grids of the values to try."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, Field, ValidationError, field_validator, model_validator

from pipeline.data.tasks import Name
from pipeline.settings.parts import MOST_EXPERTS, Whole
from pipeline.settings.recipe import Trainable
from pipeline.system.errors import shortened

_MOST_POINTS = 1000

RowName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]*$", max_length=48)]
Rows = Annotated[Whole, Field(ge=1, le=10**9)]
TaskName = Annotated[Name, AfterValidator(lambda task, info: info.context(task) if info.context else task)]
"""A task. The validation's context, a function, may rename it or raise a ValueError."""


def no_repeats(values: Sequence[Any] | None) -> Sequence[Any] | None:
    """Reject a repeated value, because its runs would be trained and counted twice."""
    for place, value in enumerate(values or ()):
        if values and value in values[:place]:
            raise ValueError(f"{shortened(value)} is listed twice")
    return values


def _not_too_large(grid: dict[str, Sequence[Any]]) -> dict[str, Sequence[Any]]:
    if (size := math.prod(map(len, grid.values()))) > _MOST_POINTS:
        raise ValueError(f"{size} combinations are too many (most {_MOST_POINTS}): leave values out")
    return grid


_Values = Annotated[tuple[Any, ...], Field(min_length=1), AfterValidator(no_repeats)]
Grid = Annotated[dict[str, _Values], AfterValidator(_not_too_large)]
"""Lists of values of flat recipe keys, which stand for every combination of them."""


def points(grid: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Every combination of a grid's values, varying the last key fastest; an empty grid has one, without a key."""
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def point_text(point: Mapping[str, Any]) -> str:
    """``epochs 2, head_dropout 0.3``."""
    return ", ".join(f"{key} {value if isinstance(value, str) else shortened(value)}" for key, value in point.items())


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of row."""

    title: str
    trains: tuple[Trainable, ...]
    """What its rows may train; the first is the default."""
    keys: tuple[str, ...] = ()
    """The keys that its rows have and those of most other kinds lack."""
    takes: Literal["head", "weights", "adapter", "fusion"] | None = None
    """What a run takes from the runs it builds on: a head; all weights; adapters, to start from one or to merge them;
    or adapters to fuse."""
    base: str | None = None
    """The kind whose finished runs its rows start from."""
    base_if: tuple[str, ...] = ()
    """Keys: a row starts from runs of ``base`` only if it has one of these; empty: all rows do."""
    is_by_source: bool = False
    """Whether a row has one run per source of a target."""
    is_joint: bool = False
    """Whether it trains on a target and its sources at once."""
    combines: bool = False
    """Whether it takes an adapter of each of its tasks."""
    is_ensemble: bool = False
    """Whether it joins the predictions of other rows' runs and trains nothing."""
    keeps_weights: bool = False
    """Whether its runs always keep their weights, because they are few."""

    @property
    def artifact(self) -> Literal["adapter", "fusion"] | None:
        """What its runs put into the store, those that take adapters; None if they are not artifacts."""
        return self.takes if self.takes == "adapter" or self.takes == "fusion" else None

    @property
    def is_one_adapter(self) -> bool:
        """Whether its runs train an adapter for a single task."""
        return self.artifact == "adapter" and not self.combines

    @property
    def merges(self) -> bool:
        """Whether it merges adapters into one."""
        return self.artifact == "adapter" and self.combines

    @property
    def answers_for_several(self) -> bool:
        """Whether one of its runs has several tasks or several models."""
        return self.is_joint or self.is_by_source or self.is_ensemble


KINDS: Mapping[str, Kind] = {
    # A head on the frozen backbone: the linear probe.
    "frozen": Kind(title="head only", trains=("head",), keeps_weights=True),
    # A linear probe in closed form: logistic or ridge regression on the frozen backbone's sentence vectors.
    "probe": Kind(title="regression on frozen vectors", trains=("probe",), keeps_weights=True),
    # Fine-tuning on the target alone; LP-FT starts with the head of a linear probe (Kumar et al. 2022).
    "full": Kind(
        title="full fine-tuning", trains=("full", "full+adapter"), takes="head", base="frozen", base_if=("of",)
    ),
    # Fine-tuning on a source, or several in turn, then on the target (Phang et al. 2019).
    "sequential": Kind(
        title="sequential", trains=("full",), keys=("order", "through"), takes="weights", base="full", is_by_source=True
    ),
    "multitask": Kind(
        title="multitask",
        trains=("full", "full+adapter", "adapter", "head"),
        keys=("after",),
        takes="weights",
        base="full",
        base_if=("after",),
        is_joint=True,
    ),
    # New, warm-started from another task's, or trained on several tasks in turn.
    "adapter": Kind(
        title="adapter",
        trains=("adapter",),
        keys=("through", "tested"),
        takes="adapter",
        base="adapter",
        base_if=("of", "through"),
    ),
    # One adapter from those of the target and its sources, or from several runs of one row (a soup). Runs with the same
    # start and different batch orders lie in one basin, so the mean of their weights, and of their heads, is often
    # better than each of them (Wortsman et al. 2022, "Model soups").
    "merge": Kind(
        title="merged adapters", trains=("adapter",), keys=("experts",), takes="adapter", base="adapter", combines=True
    ),
    "fusion": Kind(
        title="fusion",
        trains=("fusion",),
        keys=("own", "variant_of", "experts"),
        takes="fusion",
        base="adapter",
        combines=True,
    ),
    "ensemble": Kind(title="ensemble", trains=("full",), keys=("members", "most", "rule", "experts"), is_ensemble=True),
}

SOME_KEYS = tuple(dict.fromkeys(key for kind in KINDS.values() for key in kind.keys))
"""The keys of a row that only some kinds have."""

JoinedBy = Literal["mean", "uniform", "weighted", "vote"]
Title = Annotated[str, Field(max_length=300)]
if TYPE_CHECKING:
    Method = str
else:
    Method = Literal[tuple(KINDS)]
BackboneName = Annotated[str, Field(min_length=1, max_length=4096, pattern=r"^[^\x00-\x1f]+$")]


class Row(BaseModel, frozen=True, extra="forbid"):
    """A line of the comparison: a method with a recipe."""

    method: Method = Field(description="the method")
    title: Title = Field("", description="its name in tables; empty: the method's title, or the row's name")
    of: RowName | None = Field(
        None,
        description="the row whose runs it is built on; adapter: warm-start from the best of the sources' adapters, or"
        " with `through`, the row whose recipe the tasks before the target use; full: initialise the head from a row of"
        " frozen (LP-FT)",
    )
    members: tuple[RowName, ...] = Field(
        (), description="ensemble: the rows whose runs with the same seed it joins; written as a list in `of`"
    )
    rule: JoinedBy = Field(
        "mean",
        description="ensemble: mean of predictions, best members first, while the dev score does not fall; uniform: of"
        " all members, nothing selected; weighted:"
        " the same with repetition; vote: the most frequent class, or the median score, of the best members",
    )
    most: Annotated[Whole, Field(ge=1, le=100)] | None = Field(
        None, description="ensemble: maximum number of members; unset: 5 for vote, else all"
    )
    experts: Annotated[Whole, Field(ge=2, le=MOST_EXPERTS)] | None = Field(
        None,
        description="merge, fusion, ensemble: so many runs of the row `of`, or of each member, that differ only in the"
        " order of batches and in dropout; merged, they are a soup",
    )
    own: tuple[RowName, ...] = Field(
        (), description="fusion: rows of adapters; the best on dev is the target's own adapter; none: as `of`"
    )
    variant_of: RowName | None = Field(
        None,
        description="fusion: the row of fusion that this one is a variant of; against rows without fusion, each target"
        " uses the variant that is best on the validation rows",
    )
    targets: tuple[TaskName, ...] | None = Field(None, min_length=1, description="only these of the study's targets")
    sources: tuple[TaskName, ...] | None = Field(None, min_length=1, description="only these tasks besides a target")
    order: tuple[TaskName, ...] | None = Field(
        None, min_length=2, description="sequential: one model through these tasks in turn, scored on all at the end"
    )
    through: tuple[TaskName, ...] | None = Field(
        None,
        min_length=1,
        description="sequential, adapter: one model, or one adapter, through these tasks in turn before each target",
    )
    tested: bool = Field(
        True,
        description="adapter with `of`: warm-start only if the best source helps a probe significantly; extract"
        " --start-from best takes it without a test, as it explains more than no source",
    )
    after: tuple[TaskName, ...] = Field((), description="multitask: first fine-tune the model on these tasks, in turn")
    backbone: BackboneName | None = Field(
        None, description="a backbone other than the study's; the rows that it is built on must have the same"
    )
    keep_weights: bool = Field(
        False, description="full, multitask, sequential: keep the trained models for predict; other methods always do"
    )
    tune: Grid | None = Field(
        None, description="values of recipe keys; every combination is a trial, and the best on dev is the row's run"
    )
    published: str | tuple[str, ...] | dict[TaskName, str] | None = Field(
        None,
        description="its name or names in the published tables; sequential: one name for each source; full, with"
        " cross_task: one name for the model of each task, if you like",
    )
    published_columns: tuple[str, ...] | None = Field(
        None, min_length=1, description="the columns of the published tables that belong to this row; unset: all"
    )
    recipe: dict[str, Any] = Field({}, description="overrides the recipe of the task, which overrides the study's")
    tasks: dict[TaskName, dict[str, Any]] = Field({}, description="overrides the row's recipe, for one task")

    _no_repeats = field_validator("members", "own", "targets", "sources", "order", "through", "after")(no_repeats)

    @model_validator(mode="before")
    @classmethod
    def _members_from_of(cls, values: Any) -> Any:
        """``of = ["ROW", ...]`` of an ensemble is stored as ``members``."""
        if isinstance(values, Mapping) and isinstance(values.get("of"), list | tuple) and "members" not in values:
            return {**{key: value for key, value in values.items() if key != "of"}, "members": values["of"]}
        return values

    @field_validator("published", mode="wrap")
    @classmethod
    def _check_published(cls, value: Any, validate: Callable[[Any], Any]) -> Any:
        try:
            return validate(value)
        except ValidationError:
            raise ValueError("write a name, a list of names, or a table with a name for each source") from None

    @property
    def kind(self) -> Kind:
        return KINDS[self.method]

    @property
    def built_on(self) -> str | None:
        """The method whose finished runs this row's runs start from."""
        kind = self.kind
        return kind.base if not kind.base_if or any(getattr(self, key) for key in kind.base_if) else None

    @property
    def joins_tasks(self) -> bool:
        """Whether it learns from several tasks."""
        if self.kind.is_one_adapter:
            return self.built_on is not None
        return self.kind.is_joint or self.kind.is_by_source or (self.kind.combines and not self.experts)

    @property
    def trials(self) -> list[dict[str, Any]]:
        """The tuned values of each trial; one empty trial if nothing is tuned."""
        return points(self.tune or {})

    @property
    def by_source(self) -> bool:
        """Whether it has one run per source of a target, rather than one run for several."""
        return self.kind.is_by_source and self.order is None and self.through is None
