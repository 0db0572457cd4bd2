"""Low-resource curves: every row on few training rows of the target, its sources at full size."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from pipeline.reporting.main_table import mean_cell, score_cell
from pipeline.reporting.report import Cell, Table
from pipeline.reporting.runs import Scored, StudyRuns, row_of, runs_of
from pipeline.reporting.text import MISSING
from pipeline.reporting.verdicts import compare_lines, short_test_note
from pipeline.stats.paired import Comparison

Line = tuple[str, int | None]
"""A row of the study at a point: training rows of the target, None for those of the main table."""


class LowResource:
    """The points of the curve: sequential tuning is one line, the mean over its sources."""

    def __init__(self, runs: StudyRuns) -> None:
        self.runs = runs
        on_curve = [entry for entry in runs.result.entries if entry.rows is not None]
        names = {row_of(entry.method) for entry in on_curve}
        self.rows = [name for name in runs.rows if name in names]
        self.targets = [t for t in runs.study.targets if t in {entry.target for entry in on_curve}]
        self.points: list[int | None] = [*sorted({entry.rows for entry in on_curve if entry.rows is not None}), None]

    def __bool__(self) -> bool:
        return bool(self.rows)

    def group(self, row: str, target: str, point: int | None) -> list[Scored]:
        return self.runs.row(row, target, point)

    def mean(self, row: str, target: str | None, point: int | None) -> float | None:
        """Mean over seeds and sources, of a target or over all (None); None where a target has no run."""
        targets = self.targets if target is None else [target]
        means = [[scored.value for scored in self.group(row, name, point)] for name in targets]
        return statistics.mean(map(statistics.mean, means)) if all(means) else None

    def train_rows(self, point: int | None, target: str | None) -> float | None:
        """Training rows of the target at a point; of several targets their mean."""
        if point is not None:
            return point
        targets = self.targets if target is None else [target]
        found = [self.group(row, name, None) for name in targets for row in self.rows]
        sizes = [max(s.train_rows or 0 for s in group) for group in found if group]
        return statistics.mean(sizes) if sizes else None

    def verdicts(self) -> Mapping[tuple[Line, str | None], Comparison]:
        reference = self.runs.study.reference
        lines = [(row, point) for row in self.rows for point in self.points if row != reference]
        groups = {(line, target): self.group(line[0], target, line[1]) for line in lines for target in self.targets}
        references = {(line, target): self.group(reference, target, line[1]) for line, target in groups}
        return compare_lines(self.runs, groups, references, self.targets)


def low_resource_table(curve: LowResource, verdicts: Mapping[tuple[Line, str | None], Comparison]) -> Table:
    runs = curve.runs
    several = len(curve.targets) > 1
    metrics = [f"{target} ({runs.metrics.get(target, MISSING)})" for target in curve.targets]
    columns = ("training rows", "method", *metrics, *(("mean",) if several else ()))
    rows = tuple(_line(curve, (row, point), verdicts, several) for point in curve.points for row in curve.rows)
    sources = "all theirs" if runs.study.limit is None else f"their {runs.study.limit:,}"
    notes = (
        f"Training rows are those of the target; other tasks keep {sources}.",
        "Sequential tuning is the mean over its sources. Rows chose on these dev rows what they did in the main table.",
        *short_test_note(f"{runs.title(runs.study.reference)} on as many rows", len(verdicts)),
    )
    return Table("low-resource", "Few training rows", columns, rows, notes)


def _line(
    curve: LowResource, line: Line, verdicts: Mapping[tuple[Line, str | None], Comparison], several: bool
) -> tuple[Cell, ...]:
    (row, point), runs = line, curve.runs
    against = runs.title(runs.study.reference)
    cells = [_size_cell(curve, point), Cell(runs.title(row), row)]
    groups = {target: curve.group(row, target, point) for target in curve.targets}
    for target, group in groups.items():
        planned = [e for e in runs.result.entries if (row_of(e.method), e.target, e.rows) == (row, target, point)]
        failed = "; ".join(f"{e.method} seed {e.seed} failed: {e.error}" for e in planned if e.error is not None)
        cells.append(score_cell(group, len(planned), verdicts.get((line, target)), against, failed))
    if several:
        mean = curve.mean(row, None, point)
        used = runs_of(scored for group in groups.values() for scored in group) if mean is not None else ()
        cells.append(mean_cell(mean, used, verdicts.get((line, None)), against))
    return tuple(cells)


def _size_cell(curve: LowResource, point: int | None) -> Cell:
    if point is not None:
        return Cell(f"{point:,}", point)
    sizes = [size for target in curve.targets if (size := curve.train_rows(None, target)) is not None]
    same = len(set(sizes)) == 1
    return Cell(f"{sizes[0]:,.0f}" if same else "all", max(sizes, default=None))
