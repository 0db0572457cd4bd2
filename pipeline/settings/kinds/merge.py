"""One adapter, merged from the adapters of the target and its sources, or from several runs of one row (a soup).

Runs with the same start and different batch orders lie in one basin, so the mean of their weights, and of their heads,
is often better than each of them (Wortsman et al. 2022, "Model soups").
"""

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
    keys = frozenset({"experts"})
    base = "adapter"
    takes = "adapter"
    artifact = "adapter"
    combines = True
    builds_on_target = True
    builds_on_fresh = True

    def joins(self, row: Row) -> str:
        return "" if row.experts else "merging"

    def mistakes(self, row: Row, rows: Mapping[str, Row]) -> Iterator[str]:
        if row.experts and table(layered(row.recipe).get("merge")).get("rule", "mean") != "mean":
            yield "experts: ties merges what adapters changed since they were new: use merge = 'mean'"

    def completed(self, values: dict[str, Any]) -> dict[str, Any]:
        if table(values.get("merge")).get("rule", "none") == "none":
            return layered(values, {"merge": "mean"})
        return values

    def merge_mistake(self, rule: str) -> str:
        return "a row of merge merges by mean or ties: leave merge = 'none' out" if rule == "none" else ""

    def mistakes_in(self, study: Study, name: str, rows: Mapping[str, Row]) -> Iterator[str]:
        if study.source_seed is not None and not rows[name].experts:
            yield (
                f"source_seed: {name} merges adapters that started from the same weights, so their seed must be"
                " that of the target: leave source_seed out"
            )
