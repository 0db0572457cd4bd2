"""Layers of a backbone written as ``0-4``, ``0,1,3`` or ``0-2,5``, counted from 0 at the bottom."""

import re
from typing import Any

from pipeline.system.errors import PipelineError

_PART = re.compile(r"(-?\d{1,3})(?:-(\d{1,3}))?")


def parse_layers(value: Any) -> tuple[int, ...]:
    """Sorted layer numbers from a text such as ``0-2,5`` or a list of integers; a ValueError names every mistake."""
    if isinstance(value, str):
        parts = [part.strip() for part in value.split(",") if part.strip()]
    elif isinstance(value, list | tuple):
        parts = list(value)
    else:
        raise ValueError("write layers as 0-4 or 0,1,3, or as a list of whole numbers")
    layers: set[int] = set()
    problems = []
    for part in parts:
        matched = _PART.fullmatch("" if isinstance(part, bool) else str(part))
        first, last = (int(matched[1]), int(matched[2] or matched[1])) if matched else (0, 0)
        if matched is None:
            problems.append(f"'{part}' is not a layer")
        elif first < 0:
            problems.append(f"'{part}' is negative")
        elif last < first:
            problems.append(f"'{part}' runs backwards")
        layers.update(range(first, last + 1))
    if problems:
        raise ValueError(f"{'; '.join(problems)}: write layers as 0-4 or 0,1,3, counted from 0")
    return tuple(sorted(layers))


def layers_option(text: str | None) -> tuple[int, ...]:
    """The layers of ``--drop-layers``, for commands without a recipe to check them."""
    try:
        return parse_layers(text or ())
    except ValueError as error:
        raise PipelineError(f"--drop-layers {text}: {error}") from None


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
