"""Full fine-tuning, of the target alone; LP-FT starts with the head of a linear probe (Kumar et al. 2022)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.settings.kind import Kind

if TYPE_CHECKING:
    from pipeline.settings.rows import Row


class Full(Kind):
    trains = ("full", "full+adapter")
    title = "full fine-tuning"
    takes = "head"
    builds_on_target = True

    def built_on(self, row: Row) -> str | None:
        return "frozen" if row.of else None
