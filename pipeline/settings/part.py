"""What the parts of a recipe have in common."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

# No use comes near these bounds, and nothing computed from numbers within them overflows.
Count = Annotated[int, Field(le=10**6)]
Number = Annotated[float, Field(le=1e38)]  # what fp32 can hold
Width = Annotated[int, Field(le=2**16)]
Tokens = Annotated[int, Field(le=8192)]


class Part(BaseModel):
    """Settings that have an effect together. A part that has none is at its defaults, as if it was never written."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    flags: ClassVar[Mapping[str, str]] = {}
    """The flat names of its keys, where that of ``key`` is not ``<part>_<key>``."""


def table(value: Any) -> dict[str, Any]:
    """``value`` where it is a table; else nothing, since validation reports it."""
    return value if isinstance(value, dict) else {}
