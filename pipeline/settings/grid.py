"""Grids: a row of a study that stands for one row a combination of recipe values."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.system.errors import shortened

Values = Mapping[str, Any]

_MOST_CELLS = 1000


def expand_grids(values: Values) -> tuple[dict[str, Any], list[str]]:
    """A study's raw values with each ``[rows.NAME]`` that has a ``grid`` replaced by its cells, and what is wrong.

    ``grid = { head_dropout = [0.1, 0.3], learning_rate = [1e-5, 2e-5] }`` makes ``NAME-1`` to ``NAME-4``, the last key
    fastest, each titled by its values. Where ``methods`` or ``curve.methods`` name the row they name all its cells. A
    list in ``published`` gives one name a cell, an empty one for none.
    """
    rows = values.get("rows")
    if not isinstance(rows, Mapping):
        return dict(values), []
    found: dict[str, Any] = {}
    cells_of: dict[str, list[str]] = {}
    problems: list[str] = []
    for name, row in rows.items():
        if not isinstance(row, Mapping) or "grid" not in row:
            found[name] = row
            continue
        wrong = _mistakes(f"rows.{name}", row)
        problems += wrong
        if not wrong:
            cells = _cells(name, row)
            cells_of[name] = list(cells)
            problems += [
                f"rows.{name}.grid: its cell {cell} has the name of another row" for cell in cells if cell in rows
            ]
            found |= cells
    changed = {**values, "rows": found}
    if "methods" in values:
        changed["methods"] = _named(values["methods"], cells_of)
    curve = values.get("curve")
    if isinstance(curve, Mapping) and "methods" in curve:
        changed["curve"] = {**curve, "methods": _named(curve["methods"], cells_of)}
    return changed, problems


def _mistakes(where: str, row: Values) -> list[str]:
    grid, published = row["grid"], row.get("published")
    if not isinstance(grid, Mapping) or not grid:
        return [f"{where}.grid: write a table of recipe keys with lists of values, such as {{ epochs = [2, 4] }}"]
    problems = [
        f"{where}.grid.{key}: write a list of values, such as [0.1, 0.3] (got {shortened(listed)})"
        for key, listed in grid.items()
        if not isinstance(listed, list | tuple) or not listed
    ]
    if not isinstance(row.get("recipe", {}), Mapping):
        problems.append(f"{where}.recipe: write a table of recipe keys, such as {{ epochs = 2 }}")
    if problems:
        return problems
    size = math.prod(map(len, grid.values()))
    if size > _MOST_CELLS:
        problems.append(f"{where}.grid: {size} cells are too many for one study (most {_MOST_CELLS}): leave values out")
    elif isinstance(published, list | tuple) and len(published) != size:
        problems.append(f"{where}.published: {len(published)} names for {size} cells of the grid")
    return problems


def _cells(name: str, row: Values) -> dict[str, dict[str, Any]]:
    grid, published = row["grid"], row.get("published")
    title = row.get("title") or name
    cells = {}
    for number, chosen in enumerate(itertools.product(*grid.values()), start=1):
        picked = dict(zip(grid, chosen, strict=True))
        cell = {key: value for key, value in row.items() if key not in ("grid", "published")}
        cell["title"] = f"{title}, " + ", ".join(f"{key} {value}" for key, value in picked.items())
        cell["recipe"] = {**row.get("recipe", {}), **picked}
        if isinstance(published, list | tuple):
            cell["published"] = published[number - 1] or None
        elif published is not None:
            cell["published"] = published
        cells[f"{name}-{number}"] = cell
    return cells


def _named(names: Any, cells_of: Mapping[str, Sequence[str]]) -> Any:
    if not isinstance(names, list | tuple):
        return names
    return [cell for name in names for cell in (cells_of.get(name, [name]) if isinstance(name, str) else [name])]
