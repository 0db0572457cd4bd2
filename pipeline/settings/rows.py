"""Row: a line of the comparison."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from pipeline.settings.fields import Grid, RowName, TaskName, Whole, no_repeats, points
from pipeline.settings.kinds import KINDS, Kind
from pipeline.settings.parts import MOST_EXPERTS

JoinedBy = Literal["mean", "uniform", "weighted", "vote"]
Title = Annotated[str, Field(max_length=300)]
if TYPE_CHECKING:
    Method = str
else:
    Method = Literal[tuple(KINDS)]
BackboneName = Annotated[str, Field(min_length=1, max_length=4096, pattern=r"^[^\x00-\x1f]+$")]


class Row(BaseModel):
    """A line of the comparison: a method with a recipe."""

    model_config = ConfigDict(frozen=True, extra="forbid")

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
        return self.kind.built_on(self)

    @property
    def trials(self) -> list[dict[str, Any]]:
        """The tuned values of each trial; one empty trial if nothing is tuned."""
        return points(self.tune or {})

    @property
    def by_source(self) -> bool:
        """Whether it has one run per source of a target, rather than one run for several."""
        return self.kind.is_by_source and self.order is None and self.through is None
