"""Field types that several parts of the settings share: names, counts, lists without repeats, grids, layers."""

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from pipeline.data.tasks import Name
from pipeline.system.errors import PipelineError, shortened

_MOST_POINTS = 1000
_LAYERS = re.compile(r"(-?\d{1,3})(?:-(\d{1,3}))?")


def _no_bool(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("write a number, not true or false")
    return value


# pydantic accepts true as 1
Whole = Annotated[int, BeforeValidator(_no_bool)]
Real = Annotated[float, BeforeValidator(_no_bool)]

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


def parse_layers(value: Any) -> tuple[int, ...]:
    """Sorted layer numbers, from 0 at the bottom, of a text such as ``0-2,5`` or a list of integers."""
    if isinstance(value, str):
        parts = [part.strip() for part in value.split(",") if part.strip()]
    elif isinstance(value, list | tuple):
        parts = list(value)
    else:
        raise ValueError("write layers as 0-4 or 0,1,3, or as a list of whole numbers")
    layers: set[int] = set()
    for part in parts:
        matched = _LAYERS.fullmatch("" if isinstance(part, bool) else str(part))
        first, last = (int(matched[1]), int(matched[2] or matched[1])) if matched else (0, -1)
        if first < 0 or last < first:
            raise ValueError(f"'{part}' is not a layer: write layers as 0-4 or 0,1,3, counted from 0")
        layers.update(range(first, last + 1))
    return tuple(sorted(layers))


def layers_text(layers: tuple[int, ...]) -> str:
    """The shortest text that :func:`parse_layers` reads as ``layers``: (0, 1, 2, 5) is ``0-2,5``."""
    ordered = sorted(layers)
    firsts = [layer for layer in ordered if layer - 1 not in layers]
    lasts = [layer for layer in ordered if layer + 1 not in layers]
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in zip(firsts, lasts, strict=True))


def check_layers(layers: tuple[int, ...], depth: int) -> None:
    """Raise a :class:`PipelineError` unless ``layers`` can be dropped from a backbone of ``depth`` layers."""
    where = f"drop_layers {layers_text(layers)}"
    if beyond := tuple(layer for layer in layers if layer >= depth):
        raise PipelineError(f"{where}: the backbone has no layer {layers_text(beyond)}; its {depth} are 0-{depth - 1}")
    if len(layers) == depth:
        raise PipelineError(f"{where}: these are all layers of the backbone: keep at least one")
