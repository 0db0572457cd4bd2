"""Cells that several tables share: names, scores, counts, and differences with their verdict."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from pipeline.reporting.entries import Line
from pipeline.reporting.report import Cell
from pipeline.reporting.runs import Scored, StudyRuns, runs_of
from pipeline.reporting.text import MISSING, comparison_text, count, number, percent, score_text
from pipeline.stats.paired import Comparison


def mean_of(values: Iterable[float | None]) -> float | None:
    """The mean of the values that are known; None without any."""
    known = [value for value in values if value is not None]
    return statistics.mean(known) if known else None


def line_cell(runs: StudyRuns, line: Line, used: tuple[str, ...] = ()) -> Cell:
    return Cell(runs.title(line), str(line), used)


def text_cell(text: str) -> Cell:
    return Cell(text or MISSING, text)


def count_cell(value: float | None, used: tuple[str, ...] = ()) -> Cell:
    return Cell(count(value), value, used)


def share_cell(part: float | None, whole: int | None) -> Cell:
    if part is None or not whole:
        return Cell(MISSING)
    return Cell(percent(part / whole), part / whole)


def scores_cell(values: Sequence[float], used: tuple[str, ...] = (), detail: str = "") -> Cell:
    """Mean and deviation of some scores."""
    return Cell(score_text(values), mean_of(values), used, detail=detail)


def group_cell(
    group: Sequence[Scored], planned: int, comparison: Comparison | None, against: str, missing: str = ""
) -> Cell:
    """The mean of a group's scores with its verdict.

    Args:
        planned: runs that the group should have.
        missing: why some of them are not there.
    """
    values = [scored.value for scored in group]
    finished = f"{len(values)} of {planned} runs" if planned > 1 else ""
    text = score_text(values, planned)
    return judged_cell(text, mean_of(values), runs_of(group), comparison, against, after=(finished, missing))


def mean_cell(value: float | None, used: tuple[str, ...], comparison: Comparison | None, against: str) -> Cell:
    """A mean over targets with its verdict."""
    return judged_cell(number(value), value, used, comparison, against)


def judged_cell(
    text: str,
    value: float | None,
    used: tuple[str, ...],
    comparison: Comparison | None,
    against: str,
    *,
    before: str = "",
    after: Sequence[str] = (),
) -> Cell:
    """A number with its verdict; ``before`` and ``after`` stand around the test in the small print."""
    test = comparison_text(comparison, against) if comparison else ""
    detail = "; ".join(part for part in (before, test, *after) if part)
    return Cell(text, value, used, comparison.verdict if comparison else None, detail)
