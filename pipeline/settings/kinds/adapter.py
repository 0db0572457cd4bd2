"""An adapter: new, warm-started from another task's, or trained on several tasks in turn."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.settings.kind import Kind

if TYPE_CHECKING:
    from pipeline.settings.rows import Row


class Adapter(Kind):
    trains = ("adapter",)
    title = "adapter"
    keys = frozenset({"through"})
    takes = "adapter"
    artifact = "adapter"
    builds_on_fresh = True

    def built_on(self, row: Row) -> str | None:
        return "adapter" if row.of or row.through else None

    def joins(self, row: Row) -> str:
        if row.through:
            return "an adapter that learns tasks in turn"
        return "a warm-started adapter" if row.of else ""
