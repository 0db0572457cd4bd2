"""An ensemble: the joined predictions of other rows' runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from pipeline.settings.kind import Kind

if TYPE_CHECKING:
    from pipeline.settings.rows import Row
    from pipeline.settings.study import Study


class Ensemble(Kind):
    trains = ("full",)
    title = "ensemble"
    keys = frozenset({"members", "most", "rule", "experts"})
    is_ensemble = True

    def mistakes(self, row: Row, rows: Mapping[str, Row]) -> Iterator[str]:
        if not row.members:
            yield 'of: name the rows whose runs it joins, such as of = ["full", "multitask"]'
        for name in row.members:
            member = rows.get(name)
            if member is None:
                yield f"of: there is no row '{name}'"
            elif member.kind.is_ensemble:
                yield f"of: '{name}' is an ensemble itself"
            elif member.by_source:
                yield f"of: '{name}' has a run for each source: name rows with one run, such as those with an order"
        for key in ("recipe", "tasks", "tune"):
            if getattr(row, key):
                yield f"{key}: an ensemble trains nothing"

    def mistakes_in(self, study: Study, name: str, rows: Mapping[str, Row]) -> Iterator[str]:
        targets, members = study.targets_of(name), [member for member in rows[name].members if member in rows]
        for member in members:
            if not {*targets} & {*study.targets_of(member)}:
                yield f"rows.{name}.of: '{member}' has none of its targets"
        joined = {target for member in members for target in study.targets_of(member)}
        if bare := ", ".join(target for target in targets if target not in joined):
            yield f"rows.{name}.targets: no member has {bare}: leave it out here, or add a member"
        if any(study.scoring.of(target) == "dev" for target in targets):
            yield (
                f"rows.{name}: members are chosen on other rows than those that are scored: write scoring = 'half',"
                " 'test', 'held-out' or 'train' into the study"
            )
