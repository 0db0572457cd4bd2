"""Fusion of the sources' adapters, and of the target's adapter if the form takes it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from pipeline.settings.kind import Kind

if TYPE_CHECKING:
    from pipeline.settings.rows import Row


class Fusion(Kind):
    trains = ("fusion",)
    title = "fusion"
    keys = frozenset({"own", "variant_of"})
    base = "adapter"
    joining = "fusion"
    takes = "fusion"
    artifact = "fusion"
    combines = True
    builds_on_target = True

    def mistakes(self, row: Row, rows: Mapping[str, Row]) -> Iterator[str]:
        if row.variant_of:
            other = rows.get(row.variant_of)
            if other is None or other.method != row.method or other is row:
                yield f"variant_of: '{row.variant_of}' is not another row of {row.method}"
            elif other.variant_of:
                yield f"variant_of: '{row.variant_of}' is itself a variant of '{other.variant_of}': name that one"
        for name in row.own:
            if name not in rows or rows[name].method != "adapter":
                yield f"own: '{name}' is not a row of adapters"
