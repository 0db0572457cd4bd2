"""Compare every row that builds on another with that row on the target alone.

The sides differ in more than the other tasks: a fusion, for example, trains for more steps than the adapter it reads.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.records.studies import Line
from pipeline.reporting.cells import count_cell, difference_cell, group_cell, judge, line_cell, text_cell
from pipeline.reporting.report import Cell, Table
from pipeline.reporting.runs import Scored, StudyRuns, mean_of, once, runs_of
from pipeline.reporting.text import marks_note
from pipeline.stats.paired import Comparison


@dataclass(frozen=True)
class Contrast:
    """A line that learned from ``sources`` and the line that it builds on, on one target over their common seeds."""

    line: Line
    base: Line
    sources: str
    target: str
    comparison: Comparison


@once
def contrasts(runs: StudyRuns) -> list[Contrast]:
    """Every line that builds on another row and on other tasks, and joint training against full fine-tuning."""
    bases = {}
    for line in runs.lines:
        row = runs.study.row(line.row)
        base = "full" if row.kind.is_joint else row.of
        if base is not None and row.kind.joins(row):
            bases[line] = Line(base)
    family = {
        (line, target): runs.difference(runs.cell(line, target), runs.cell(base, target), target)
        for line, base in bases.items()
        for target in runs.study.targets
    }
    return [
        Contrast(line, bases[line], _sources(runs, line, target), target, comparison)
        for (line, target), comparison in judge(family, runs.study.looks).items()
    ]


def _sources(runs: StudyRuns, line: Line, target: str) -> str:
    """The tasks besides the target that a line learned from, in training order if it learned them in turn."""
    turn = runs.study.turn(line.row, target)
    tasks = turn[: turn.index(target)] if target in turn else runs.study.partners(line.row, target)
    return line.source or ", ".join(tasks)


def built_on_table(runs: StudyRuns) -> Table | None:
    """One line per contrast; None if no row builds on another."""
    all_contrasts = contrasts(runs)
    rows = [_row(runs, contrast) for contrast in all_contrasts]
    unequal = sum(row["base steps"].sort != row["steps"].sort for row in rows)
    marks = marks_note("the base row", all_contrasts)
    return Table.of("built-on", rows, unequal=unequal, total=len(rows), marks=marks)


def _row(runs: StudyRuns, contrast: Contrast) -> dict[str, Cell]:
    base, group = runs.cell(contrast.base, contrast.target), runs.cell(contrast.line, contrast.target)
    both = runs_of((*group, *base))
    return {
        "method": line_cell(runs, contrast.line),
        "base row": line_cell(runs, contrast.base),
        "other tasks": text_cell(contrast.sources),
        "target": text_cell(contrast.target),
        "base score": group_cell(base),
        "base steps": _steps_cell(runs, base),
        "score": group_cell(group),
        "steps": _steps_cell(runs, group),
        "difference, points": difference_cell(
            contrast.comparison.difference, both, contrast.comparison, runs.title(contrast.base)
        ),
    }


def _steps_cell(runs: StudyRuns, group: Sequence[Scored]) -> Cell:
    """Optimiser steps on the target's rows, mean over seeds; empty if unknown for any run."""
    steps = [runs.steps_on(scored.record, scored.entry.target) for scored in group]
    return count_cell(None if None in steps else mean_of(steps))
