"""Layers of a backbone written as ``0-4``, ``0,1,3`` or ``0-2,5``, counted from 0 at the bottom."""

import re
from typing import Any

from pipeline.system.errors import PipelineError

_PART = re.compile(r"(-?\d{1,3})(?:-(\d{1,3}))?")


def parse_layers(value: Any) -> tuple[int, ...]:
    """Sorted layer numbers, each once, of a text such as ``0-2,5`` or a list of whole numbers.

    Raises:
        ValueError: naming every mistake.
    """
    if isinstance(value, str):
        parts = [part.strip() for part in value.split(",") if part.strip()]
    elif isinstance(value, list | tuple):
        parts = list(value)
    else:
        raise ValueError("write layers as 0-4 or 0,1,3, or as a list of whole numbers")
    layers: set[int] = set()
    problems = []
    for part in parts:
        try:
            layers.update(_parse_part(part))
        except ValueError as error:
            problems.append(str(error))
    if problems:
        raise ValueError(f"{'; '.join(problems)}: write layers as 0-4 or 0,1,3, counted from 0")
    return tuple(sorted(layers))


def layers_option(text: str | None) -> tuple[int, ...]:
    """The layers of ``--drop-layers``, where no recipe checks them.

    Raises:
        PipelineError: they are not layers.
    """
    try:
        return parse_layers(text or ())
    except ValueError as error:
        raise PipelineError(f"--drop-layers {text}: {error}") from None


def layers_text(layers: tuple[int, ...]) -> str:
    """The shortest text that :func:`parse_layers` reads as ``layers``: (0, 1, 2, 5) is ``0-2,5``."""
    runs: list[list[int]] = []
    for layer in sorted(layers):
        if runs and runs[-1][-1] == layer - 1:
            runs[-1].append(layer)
        else:
            runs.append([layer])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def check_layers(layers: tuple[int, ...], depth: int) -> None:
    """Raise a :class:`PipelineError` unless ``layers`` can be dropped from a backbone of ``depth`` layers."""
    where = f"drop_layers {layers_text(layers)}"
    if beyond := tuple(layer for layer in layers if layer >= depth):
        raise PipelineError(f"{where}: the backbone has no layer {layers_text(beyond)}; its {depth} are 0-{depth - 1}")
    if len(layers) == depth:
        raise PipelineError(f"{where}: these are all layers of the backbone: keep at least one")


def _parse_part(part: Any) -> range:
    matched = _PART.fullmatch("" if isinstance(part, bool) else str(part))
    if matched is None:
        raise ValueError(f"'{part}' is no layer")
    first, last = int(matched[1]), int(matched[2] or matched[1])
    if first < 0:
        raise ValueError(f"'{part}' is negative")
    if last < first:
        raise ValueError(f"'{part}' runs backwards")
    return range(first, last + 1)
