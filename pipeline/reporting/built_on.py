"""Every row that is built on another, beside that row on the target alone.

The two sides differ in more than the other tasks: a fusion, for one, comes after its adapter's training and so trains
for more steps. A difference here does not show what the other tasks are worth.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.reporting.cells import count_cell, judged_cell, line_cell, scores_cell, text_cell
from pipeline.reporting.entries import Line
from pipeline.reporting.report import Table
from pipeline.reporting.runs import Scored, StudyRuns, once, runs_of
from pipeline.reporting.text import points
from pipeline.reporting.verdicts import judge, short_test_note
from pipeline.stats.paired import Comparison

TITLE = "Beside the row it is built on"


@dataclass(frozen=True)
class Side:
    """The runs of a line on one target."""

    line: Line
    group: Sequence[Scored]
    steps: float | None
    """Optimiser steps on the target's rows, mean over seeds; None where they are not known of all."""

    @property
    def scores(self) -> list[float]:
        return [scored.value for scored in self.group]


@dataclass(frozen=True)
class Contrast:
    """A line with knowledge of ``sources`` and the row that it is built on, on one target over the seeds of both."""

    own: Side
    base: Side
    sources: str
    target: str
    comparison: Comparison


@once
def contrasts(runs: StudyRuns) -> list[Contrast]:
    """Every line that is built on another row, and joint training beside fine-tuning on the target alone."""
    bases = {line: Line(base) for line in runs.lines if (base := _base(runs, line)) is not None}
    family = {
        (line, target): runs.resampled(runs.cell(line, target), runs.cell(base, target), target)
        for line, base in bases.items()
        for target in runs.study.targets
    }
    return [
        Contrast(
            own=_side(runs, line, target),
            base=_side(runs, bases[line], target),
            sources=line.source or ", ".join(runs.study.partners(line.row, target)),
            target=target,
            comparison=comparison,
        )
        for (line, target), comparison in judge(family).items()
    ]


def _base(runs: StudyRuns, line: Line) -> str | None:
    row = runs.study.row(line.row)
    return "full" if row.method == "multitask" else row.of


def _side(runs: StudyRuns, line: Line, target: str) -> Side:
    group = runs.cell(line, target)
    steps = [runs.steps_on(scored.record, target) for scored in group]
    known = [number for number in steps if number is not None]
    return Side(line, group, statistics.mean(known) if len(known) == len(steps) else None)


def built_on_table(runs: StudyRuns) -> Table | None:
    """One line a contrast; None where no row is built on another."""
    found = contrasts(runs)
    if not found:
        return None
    rows = tuple(
        (
            line_cell(runs, one.own.line),
            line_cell(runs, one.base.line),
            text_cell(one.sources),
            text_cell(one.target),
            scores_cell(one.base.scores, runs_of(one.base.group)),
            count_cell(one.base.steps),
            scores_cell(one.own.scores, runs_of(one.own.group)),
            count_cell(one.own.steps),
            judged_cell(
                points(one.comparison.difference),
                one.comparison.difference,
                runs_of((*one.own.group, *one.base.group)),
                one.comparison,
                runs.title(one.base.line),
            ),
        )
        for one in found
    )
    columns = (
        "method", "base row", "other tasks", "target", "base score", "base steps", "score", "steps",
        "difference, points",
    )  # fmt: skip
    unequal = sum(one.base.steps != one.own.steps for one in found)
    notes = (
        "Base row: fine-tuning on the target alone for sequential and joint training, the row of adapters for what is"
        " built on adapters. Steps: optimiser steps on the target's rows, mean over seeds; a fusion's include those of"
        " the target's own adapter that it reads, joint training's are all of its steps.",
        *([_UNEQUAL.format(unequal=unequal, total=len(found))] if unequal else []),
        *short_test_note("the base row", found),
    )
    return Table("built-on", TITLE, columns, rows, notes)


_UNEQUAL = (
    "In {unequal} of {total} lines the two sides trained for different numbers of steps: such a difference may come"
    " from the steps as well as from the other tasks, and does not show that these help."
)
