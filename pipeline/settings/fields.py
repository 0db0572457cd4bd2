"""Field types that several parts of a study share: names of rows and tasks, counts, lists without repeats."""

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo

from pipeline.data.tasks import Name
from pipeline.system.errors import shortened


def _no_bool(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("write a number, not true or false")
    return value


# pydantic accepts true as 1
Whole = Annotated[int, BeforeValidator(_no_bool)]
Real = Annotated[float, BeforeValidator(_no_bool)]

RowName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]*$", max_length=48)]
Rows = Annotated[Whole, Field(ge=1, le=10**9)]


def _renamed(task: str, info: ValidationInfo) -> str:
    return info.context(task) if info.context else task


TaskName = Annotated[Name, AfterValidator(_renamed)]
"""A task. A function, because the validation's context may rename it."""


def no_repeats(values: Sequence[Any] | None) -> Sequence[Any] | None:
    """Reject a repeated value, because its runs would be trained and counted twice."""
    if repeated := _repeated(values or ()):
        raise ValueError(f"{shortened(repeated[0])} is listed twice")
    return values


def _repeated(values: Sequence[Any]) -> list[Any]:
    try:
        return [value for value, count in Counter(values).items() if count > 1]
    except TypeError:  # tables are unhashable
        return [value for place, value in enumerate(values) if value in values[:place]]
