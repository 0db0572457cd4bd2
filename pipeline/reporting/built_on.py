"""Every row that is built on another, beside that row on the target alone.

The two sides differ in more than the other tasks: a fusion, for one, comes after its adapter's training and so trains
for more steps. A difference here does not show what the other tasks are worth.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.reporting.report import Cell, Table
from pipeline.reporting.runs import Scored, StudyRuns, row_of, runs_of
from pipeline.reporting.text import comparison_text, count, points, score_text
from pipeline.reporting.verdicts import judge, short_test_note
from pipeline.stats.paired import Comparison, Resampled

TITLE = "Beside the row it is built on"


@dataclass(frozen=True)
class Contrast:
    """A line with knowledge of ``sources`` and the row that it is built on, on one target over the seeds of both."""

    row: str
    base: str
    sources: str
    target: str
    base_runs: tuple[Scored, ...]
    runs: tuple[Scored, ...]
    comparison: Comparison


def contrasts(runs: StudyRuns) -> list[Contrast]:
    """Every line that is built on another row, and joint training beside fine-tuning on the target alone."""
    bases = {label: base for label in runs.labels if (base := _base(runs, label)) is not None}
    family: dict[tuple[str, str], Resampled] = {}
    for label, base in bases.items():
        for target in runs.study.targets:
            resampled = runs.resampled(runs.cell(label, target), runs.cell(base, target))
            if resampled is not None:
                family[label, target] = resampled
    return [
        Contrast(
            row=label,
            base=bases[label],
            sources=label.partition(":")[2] or ", ".join(runs.study.partners(label, target)),
            target=target,
            base_runs=tuple(runs.cell(bases[label], target)),
            runs=tuple(runs.cell(label, target)),
            comparison=comparison,
        )
        for (label, target), comparison in judge(family).items()
    ]


def _base(runs: StudyRuns, label: str) -> str | None:
    row = runs.study.row(row_of(label))
    return "full" if row.method == "multitask" else row.of


def built_on_table(runs: StudyRuns, found: Sequence[Contrast]) -> Table | None:
    """One line a contrast; None where no row is built on another."""
    if not found:
        return None
    steps = [tuple(_steps(runs, group, one.target) for group in (one.base_runs, one.runs)) for one in found]
    rows = tuple(
        (
            Cell(runs.title(one.row), one.row),
            Cell(runs.title(one.base), one.base),
            Cell(one.sources, one.sources),
            Cell(one.target, one.target),
            _scores(one.base_runs),
            Cell(count(base_steps), base_steps),
            _scores(one.runs),
            Cell(count(own_steps), own_steps),
            Cell(
                points(one.comparison.difference),
                one.comparison.difference,
                runs_of((*one.runs, *one.base_runs)),
                one.comparison.verdict,
                comparison_text(one.comparison, runs.title(one.base)),
            ),
        )
        for one, (base_steps, own_steps) in zip(found, steps, strict=True)
    )
    columns = (
        "method", "base row", "other tasks", "target", "base score", "base steps", "score", "steps",
        "difference, points",
    )  # fmt: skip
    unequal = sum(base != own for base, own in steps)
    notes = (
        "Base row: fine-tuning on the target alone for sequential and joint training, the row of adapters for what is"
        " built on adapters. Steps: optimiser steps on the target's rows, mean over seeds; a fusion's include those of"
        " the target's own adapter that it reads, joint training's are all of its steps.",
        *([_UNEQUAL.format(unequal=unequal, total=len(found))] if unequal else []),
        *short_test_note("the base row", len(found)),
    )
    return Table("built-on", TITLE, columns, rows, notes)


_UNEQUAL = (
    "In {unequal} of {total} lines the two sides trained for different numbers of steps: such a difference may come"
    " from the steps as well as from the other tasks, and does not show that these help."
)


def _steps(runs: StudyRuns, group: Sequence[Scored], target: str) -> float | None:
    steps = [runs.steps_on(scored.record, target) for scored in group]
    known = [number for number in steps if number is not None]
    return statistics.mean(known) if len(known) == len(steps) else None


def _scores(group: tuple[Scored, ...]) -> Cell:
    values = [scored.value for scored in group]
    return Cell(score_text(values), statistics.mean(values), runs_of(group))
