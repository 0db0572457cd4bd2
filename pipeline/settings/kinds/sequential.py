"""Sequential fine-tuning: on a source, or several in turn, then on the target (Phang et al. 2019)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.settings.kind import Kind

if TYPE_CHECKING:
    from pipeline.settings.rows import Row


class Sequential(Kind):
    trains = ("full",)
    title = "sequential"
    keys = frozenset({"order", "through"})
    takes = "weights"
    is_by_source = True

    def built_on(self, row: Row) -> str | None:
        return "full"

    def joins(self, row: Row) -> str:
        return "sequential fine-tuning"
