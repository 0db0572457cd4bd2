"""The parts of a study: rows, the low-resource curve, the published table beside it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from pipeline.data.tasks import Name
from pipeline.settings.recipe import Trainable

Method = Literal["frozen", "full", "sequential", "multitask", "adapter", "fusion"]
RowName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]*$", max_length=48)]
Rows = Annotated[int, Field(ge=1, le=10**9)]
Title = Annotated[str, Field(max_length=300)]

TRAINABLE: dict[Method, Trainable] = {
    "frozen": "head",
    "full": "full",
    "sequential": "full",
    "multitask": "full",
    "adapter": "adapter",
    "fusion": "fusion",
}
TITLES: dict[Method, str] = {
    "frozen": "head only",
    "full": "full fine-tuning",
    "sequential": "sequential",
    "multitask": "multitask",
    "adapter": "adapter",
    "fusion": "fusion",
}
MAY_TRAIN: dict[Method, tuple[Trainable, ...]] = {
    "full": ("full", "full+adapter"),
    "multitask": ("full", "full+adapter", "adapter", "head"),
}
"""The methods whose rows may say what trains; the first is what it is where they do not."""
BUILT_ON: dict[Method, Method] = {"sequential": "full", "fusion": "adapter"}
"""The methods whose runs begin with finished runs of another."""


class Row(BaseModel):
    """A line of the comparison: a method with a recipe of its own."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    method: Method
    title: Title = Field("", description="what tables print; empty: the method's own, or the row's name")
    of: RowName | None = Field(
        None, description="the row whose runs it is built on; adapter: it begins as the best of those of the sources"
    )
    own: tuple[RowName, ...] = Field(
        (),
        description="fusion: rows that the target's own adapter may be from, the best on dev; none: as `of`",
    )
    targets: tuple[Name, ...] | None = Field(None, min_length=1, description="only these of the study's targets")
    sources: tuple[Name, ...] | None = Field(None, min_length=1, description="only these of the tasks beside a target")
    order: tuple[Name, ...] | None = Field(
        None, min_length=2, description="sequential: one model through these tasks in turn, scored on all at the end"
    )
    after: tuple[Name, ...] = Field((), description="multitask: tasks that the model is first fine-tuned on, in turn")
    backbone: str | None = Field(
        None,
        min_length=1,
        max_length=4096,
        pattern=r"^[^\x00-\x1f]+$",
        description="another backbone than the study's, such as a folder that `pretrain` wrote; rows that it is built"
        " on are on the same",
    )
    keep_weights: bool = Field(
        False, description="multitask, sequential: keep the trained models for predict; the others' are kept as it is"
    )
    published: str | tuple[str, ...] | dict[Name, str] | None = Field(
        None, description="its name or names in the published tables; for sequential tuning one name a source"
    )
    recipe: dict[str, Any] = Field({}, description="over the recipe of the task, which is over the study's")
    tasks: dict[Name, dict[str, Any]] = Field({}, description="over the row's recipe, for one task")

    @property
    def built_on(self) -> Method | None:
        """The method whose finished runs this row's runs begin with."""
        if self.method == "adapter" and self.of is not None:
            return "adapter"
        return "full" if self.after else BUILT_ON.get(self.method)


class Curve(BaseModel):
    """Low-resource curves: the rows again on few training rows of the target, the sources as they were."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rows: tuple[Rows, ...] = Field((100, 300, 1000), min_length=1, description="training rows of the target")
    methods: tuple[RowName, ...] = Field(("full", "adapter", "fusion", "sequential", "multitask"), min_length=1)
    targets: tuple[Name, ...] | None = Field(None, min_length=1, description="only these")
    recipe: dict[str, Any] = Field({}, description="over the rows' recipes: few rows need more epochs")


class Published(BaseModel):
    """Tables of ``published_results.csv`` to print beside the study's own."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    report: str
    table: str | Annotated[tuple[str, ...], Field(min_length=1)] = Field(description="one of them, or several")
    split: str = "dev"
    tasks: dict[str, Name] = Field(min_length=1, description="metric column of the table -> task")

    @property
    def tables(self) -> tuple[str, ...]:
        return (self.table,) if isinstance(self.table, str) else self.table
