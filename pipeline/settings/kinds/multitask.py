"""Joint training on a target and its sources."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.settings.kind import Kind

if TYPE_CHECKING:
    from pipeline.settings.rows import Row


class Multitask(Kind):
    trains = ("full", "full+adapter", "adapter", "head")
    title = "multitask"
    keys = frozenset({"after"})
    takes = "weights"
    joining = "joint training"
    is_joint = True

    def built_on(self, row: Row) -> str | None:
        return "full" if row.after else None
