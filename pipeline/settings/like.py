"""Rows that are like others: ``like = "ROW"`` copies another row of the study, and the row's own keys go over it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.settings.rows import METHODS
from pipeline.system.errors import shortened

_NOT_COPIED = ("title", "published")
_MERGED = {"recipe": 1, "tasks": 2}
"""The tables of a row that are merged key by key, and how many levels deep."""


def expand_likes(values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str], list[str]]:
    """A study's raw values with every row written out; the row that each row is like; and what is wrong.

    A row copies all but the title and the published names, its tables key by key. A row that is called like a method
    is one of that method.
    """
    rows = values.get("rows")
    if not isinstance(rows, dict):
        return dict(values), {}, []
    written = {name: {"method": name, **row} if name in METHODS and _is(row) else row for name, row in rows.items()}
    known = {method: {"method": method} for method in METHODS} | written
    bases = {name: row["like"] for name, row in written.items() if _is(row) and "like" in row}
    problems = []
    for name, base in tuple(bases.items()):
        if not isinstance(base, str) or base not in known:
            problems.append(f"rows.{name}.like: there is no row {shortened(base)}")
            del bases[name]
    complete: dict[str, Any] = {}
    for start in written:
        chain = [start]  # each is like the next
        while (base := bases.get(chain[-1])) is not None and base not in complete:
            if base in chain:
                circle = " -> ".join((*chain[chain.index(base) :], base))
                problems.append(f"rows.{chain[-1]}.like: rows cannot be like each other in a circle ({circle})")
                del bases[chain[-1]]
            else:
                chain.append(base)
        for name in reversed(chain):
            base = bases.get(name)
            complete[name] = known[name] if base is None else _over(complete[base], known[name])
    return {**values, "rows": {name: _finished(complete[name]) for name in rows}}, bases, problems


def _over(base: Any, row: dict[str, Any]) -> dict[str, Any]:
    copied = {key: value for key, value in base.items() if key not in _NOT_COPIED} if _is(base) else {}
    tables = {key: _merged(copied.get(key), row[key], levels) for key, levels in _MERGED.items() if key in row}
    return {**copied, **row, **tables}


def _merged(base: Any, own: Any, levels: int) -> Any:
    if levels == 0 or not _is(base) or not _is(own):
        return own
    return {**base, **{key: _merged(base.get(key), value, levels - 1) for key, value in own.items()}}


def _finished(row: Any) -> Any:
    if not _is(row) or "like" not in row:
        return row
    # Without a method, `like` was wrong. That is reported, and a missing method would only distract from it.
    return {"method": "full", **{key: value for key, value in row.items() if key != "like"}}


def _is(row: Any) -> bool:
    """Whether ``row`` is a table; validation reports what is none."""
    return isinstance(row, dict)
