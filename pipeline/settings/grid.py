"""Grids: a row of a study that stands for several rows, one for each combination of recipe values."""

import itertools
import math
from typing import Any

from pipeline.settings.recipe import layered
from pipeline.system.errors import shortened

Table = dict[str, Any]

_MOST_CELLS = 1000


def expand_grids(values: Table) -> tuple[Table, list[str]]:
    """A study's raw values with each ``[rows.NAME]`` that has a ``grid`` replaced by its cells, and what is wrong.

    ``grid = { head_dropout = [0.1, 0.3], learning_rate = [1e-5, 2e-5] }`` makes ``NAME-1`` to ``NAME-4``, the last key
    fastest, each titled by its values. Where ``methods`` or ``curve.methods`` name the row, they name all its cells. A
    list in ``published`` gives each cell its name, or an empty text for none.
    """
    rows = values.get("rows")
    if not isinstance(rows, dict):
        return values, []
    cells_of: dict[str, Table] = {}
    problems: list[str] = []
    for name, row in rows.items():
        if isinstance(row, dict) and "grid" in row:
            mistakes = _mistakes(f"rows.{name}", row)
            expandable = not mistakes and isinstance(row.get("recipe", {}), dict)  # else validation reports it
            cells_of[name] = _cells(name, row) if expandable else {name: _without_grid(row)}
            taken = [cell for cell in cells_of[name] if cell in rows and cell != name]
            problems += mistakes + [f"rows.{name}.grid: its cell {cell} has the name of another row" for cell in taken]
    expanded = {cell: own for name, row in rows.items() for cell, own in cells_of.get(name, {name: row}).items()}

    def with_cells(part: Any) -> Any:
        if not isinstance(part, dict) or not isinstance(part.get("methods"), list | tuple):
            return part
        cells = [list(cells_of.get(name, [name])) if isinstance(name, str) else [name] for name in part["methods"]]
        return {**part, "methods": list(itertools.chain(*cells))}

    return {**with_cells(values), "rows": expanded, "curve": with_cells(values.get("curve"))}, problems


def _mistakes(where: str, row: Table) -> list[str]:
    grid, published = row["grid"], row.get("published")
    if not isinstance(grid, dict) or not grid:
        return [f"{where}.grid: write a table of recipe keys with lists of values, such as {{ epochs = [2, 4] }}"]
    problems = [
        f"{where}.grid.{key}: write a list of values, such as [0.1, 0.3] (got {shortened(listed)})"
        for key, listed in grid.items()
        if not isinstance(listed, list | tuple) or not listed
    ]
    if problems:
        return problems
    size = math.prod(map(len, grid.values()))
    if size > _MOST_CELLS:
        return [f"{where}.grid: {size} cells are too many for one study (most {_MOST_CELLS}): leave values out"]
    if isinstance(published, list | tuple) and len(published) != size:
        return [f"{where}.published: {len(published)} names for {size} cells of the grid"]
    return []


def _cells(name: str, row: Table) -> Table:
    grid, published = row["grid"], row.get("published")
    cells = {}
    for number, chosen in enumerate(itertools.product(*grid.values()), start=1):
        picked = dict(zip(grid, chosen, strict=True))
        values = (f"{key} {value if isinstance(value, str) else shortened(value)}" for key, value in picked.items())
        cells[f"{name}-{number}"] = {
            **_without_grid(row),
            "title": f"{row.get('title') or name}, {', '.join(values)}",
            "recipe": layered(row.get("recipe", {}), picked),
            "published": (published[number - 1] or None) if isinstance(published, list | tuple) else published,
        }
    return cells


def _without_grid(row: Table) -> Table:
    return {key: value for key, value in row.items() if key != "grid"}
