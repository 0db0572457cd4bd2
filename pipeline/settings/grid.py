"""Grids: lists of values of recipe keys, and the combinations that they stand for."""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from pipeline.settings.fields import no_repeats
from pipeline.system.errors import shortened

_MOST_TRIALS = 200


def _not_too_large(grid: dict[str, Sequence[Any]]) -> dict[str, Sequence[Any]]:
    if (size := math.prod(map(len, grid.values()))) > _MOST_TRIALS:
        raise ValueError(f"{size} trials are too many (most {_MOST_TRIALS}): leave values out")
    return grid


_Values = Annotated[tuple[Any, ...], Field(min_length=1), AfterValidator(no_repeats)]
Grid = Annotated[dict[str, _Values], AfterValidator(_not_too_large)]
"""Values of flat recipe keys: one trial per combination."""


def points(grid: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Every combination of a grid's values, varying the last key fastest; an empty grid has one, without a key."""
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def point_text(point: Mapping[str, Any]) -> str:
    """``epochs 2, head_dropout 0.3``."""
    return ", ".join(f"{key} {value if isinstance(value, str) else shortened(value)}" for key, value in point.items())
