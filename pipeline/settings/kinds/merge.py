"""One adapter, merged from the adapters of the target and its sources."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pipeline.settings.kind import Kind
from pipeline.settings.recipe import layered, table

if TYPE_CHECKING:
    from pipeline.settings.rows import Row
    from pipeline.settings.study import Study


class Merge(Kind):
    trains = ("adapter",)
    title = "merged adapters"
    base = "adapter"
    joining = "merging"
    takes = "adapter"
    artifact = "adapter"
    combines = True
    builds_on_target = True
    builds_on_fresh = True

    def completed(self, values: dict[str, Any]) -> dict[str, Any]:
        if table(values.get("merge")).get("rule", "none") == "none":
            return layered(values, {"merge": "mean"})
        return values

    def merge_mistake(self, rule: str) -> str:
        return "a row of merge merges by mean or ties: leave merge = 'none' out" if rule == "none" else ""

    def mistakes_in(self, study: Study, name: str, rows: Mapping[str, Row]) -> Iterator[str]:
        if study.source_seed is not None:
            yield (
                f"source_seed: {name} merges adapters that started from the same weights, so their seed must be"
                " that of the target: leave source_seed out"
            )
