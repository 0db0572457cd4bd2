"""Low-resource curves: every row with few training rows of the target and full-size sources."""

import statistics
from collections.abc import Iterator, Sequence
from functools import cached_property

from pipeline.records.studies import Line
from pipeline.reporting.cells import Verdicts, against_reference, line_cell, score_cells, with_best
from pipeline.reporting.report import Cell, Table
from pipeline.reporting.runs import StudyRuns, mean_of, once
from pipeline.reporting.text import amount_text, count, marks_note, where_text


class LowResource:
    """The points of the curve. Sequential fine-tuning is one line, the mean over its sources."""

    def __init__(self, runs: StudyRuns) -> None:
        self.runs = runs
        on_curve = [entry for entry in runs.result.entries if entry.rows is not None]
        names, targets = {entry.line.row for entry in on_curve}, {entry.target for entry in on_curve}
        self.rows = [name for name in runs.rows if name in names]
        self.targets = [target for target in runs.study.targets if target in targets]
        self.points: list[int | None] = [*sorted({entry.rows for entry in on_curve if entry.rows is not None}), None]
        """Training rows of the target at each point; None is the main table's point."""

    def mean(self, row: str, targets: Sequence[str], point: int | None) -> float | None:
        """Mean over seeds, sources and targets; None if a target has no run."""
        values = [[scored.value for scored in self.runs.cell(row, target, point)] for target in targets]
        return statistics.mean(map(statistics.mean, values)) if all(values) else None

    def train_rows(self, point: int | None, targets: Sequence[str]) -> float | None:
        """Training rows of the target at a point, mean over targets."""
        if point is not None:
            return point
        groups = [self.runs.cell(row, target) for target in targets for row in self.rows]
        return mean_of(max(map(self.runs.train_rows, group)) or None for group in groups if group)

    @cached_property
    def verdicts(self) -> Verdicts:
        places = [(row, point) for row in self.rows for point in self.points]
        return against_reference(self.runs, places, self.targets)


@once
def low_resource(runs: StudyRuns) -> LowResource | None:
    """The curve of a study; None if it has none."""
    curve = LowResource(runs)
    return curve if curve.rows else None


def low_resource_table(runs: StudyRuns) -> Table | None:
    curve = low_resource(runs)
    if curve is None:
        return None
    rows = []
    for point in curve.points:
        rows += with_best([_row(runs, curve, row, point) for row in curve.rows], [*map(runs.column, curve.targets)])
    sources = "all theirs" if runs.study.limit is None else f"their {runs.study.limit:,}"
    marks = marks_note(f"{runs.title(runs.reference)} on as many rows", curve.verdicts)
    return Table.of("low-resource", rows, sources=sources, marks=marks)


def _row(runs: StudyRuns, curve: LowResource, row: str, point: int | None) -> dict[str, Cell]:
    planned = {target: len(runs.entries(row, target, point)) for target in curve.targets}
    mean = curve.mean(row, curve.targets, point)
    cells = score_cells(runs, (row, point), curve.targets, planned, mean, curve.verdicts)
    return {"training rows": _size_cell(curve, point), "method": line_cell(runs, Line(row)), **cells}


def _size_cell(curve: LowResource, point: int | None) -> Cell:
    if point is not None:
        return Cell(f"{point:,}", point)
    sizes = {size for target in curve.targets if (size := curve.train_rows(None, [target])) is not None}
    largest = max(sizes, default=None)
    return Cell(count(largest) if len(sizes) == 1 else "all", largest)


def low_resource_sentences(runs: StudyRuns) -> Iterator[str]:
    """Test results of every row at every point, on the mean over targets."""
    curve = low_resource(runs)
    if curve is None:
        return
    scope = None if len(curve.targets) > 1 else curve.targets[0]
    where, against = where_text(runs.study, curve.targets), runs.title(runs.reference)
    for point in curve.points[:-1]:
        parts, same = list[str](), list[Line]()
        for row in curve.rows:
            comparison = curve.verdicts.get(((row, point), scope))
            if comparison is not None and comparison.significant:
                parts.append(
                    f"{runs.study.title(row)} is {comparison.verdict} by {amount_text(comparison, runs.study)}"
                )
            elif comparison is not None:
                same.append(Line(row))
        if same:
            parts.append(f"the difference is not significant for {runs.titles(same)}")
        if parts:
            yield f"With {point:,} training rows, on {where}, against {against}: {'; '.join(parts)}."
