"""Extra: a task whose training rows are added to a target's (Liu & Shen 2023, section on extra data)."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, field_serializer, field_validator, model_validator

from pipeline.data.tasks import Name


class Extra(BaseModel):
    """A source of rows, and how its labels become the target's; by default they mean the same."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    task: Name
    labels: tuple[tuple[str, float], ...] = Field((), description="class of the source -> label of the target")
    scale: tuple[float, float] | None = Field(None, description="label = scale[0] * score of the source + scale[1]")

    @field_validator("labels", mode="before")
    @classmethod
    def _in_order(cls, value: Any) -> Any:
        """A table of labels as sorted pairs, so that equal tables give equal recipes."""
        return tuple(sorted((str(key), label) for key, label in value.items())) if isinstance(value, Mapping) else value

    @field_serializer("labels")
    def _as_table(self, value: tuple[tuple[str, float], ...]) -> dict[str, float]:
        return dict(value)

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        if self.labels and self.scale is not None:
            raise ValueError("labels are for classes and scale for scores: give one of them")
        return self

    def __str__(self) -> str:
        """``sick``, ``cfimdb (0 as 1, 1 as 3)``, ``sick (1.25 x - 1.25)``."""
        if self.labels:
            return f"{self.task} ({', '.join(f'{key} as {label:g}' for key, label in self.labels)})"
        if self.scale is not None:
            return f"{self.task} ({self.scale[0]:g} x {self.scale[1]:+g})"
        return self.task


def parse_extra(value: Any) -> Any:
    """``{ sick = {}, cfimdb = { labels = { 0 = 1, 1 = 3 } } }`` as a list of sources, in order of name."""
    if isinstance(value, Mapping):
        for name, options in value.items():
            if not isinstance(options, Mapping):
                raise ValueError(f"'{name}': write a table, such as extra = {{ {name} = {{}} }}")
        return [{**value[name], "task": name} for name in sorted(value, key=str)]
    return value


def in_order(sources: tuple[Extra, ...]) -> tuple[Extra, ...]:
    """Sort ``sources`` by name, so that their order does not tell recipes apart."""
    ordered = tuple(sorted(sources, key=lambda source: source.task))
    for first, second in pairwise(ordered):
        if first.task == second.task:
            raise ValueError(f"'{first.task}' is named more than once: a task is one source")
    return ordered


def extra_table(sources: tuple[Extra, ...]) -> dict[str, Any]:
    """The inverse of :func:`parse_extra`."""
    return {source.task: source.model_dump(exclude={"task"}) for source in sources}
