"""Cells that several tables share (names, scores, counts, differences), and verdicts on differences."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from pipeline.records.studies import Line
from pipeline.reporting.report import MISSING, Cell, comparison_text, count, number, percent, points, score_text
from pipeline.reporting.runs import Scored, StudyRuns, mean_of, runs_of
from pipeline.stats.paired import Comparison, Difference, mean_difference

Key = TypeVar("Key", bound=Hashable)
Place = tuple[Line | str, int | None]
"""A line, or a row over all its sources, with its point on the low-resource curve (None: the main table)."""
Verdicts = Mapping[tuple[Place, str | None], Comparison]
"""Comparisons by place and target; target None is the mean over all targets."""


def line_cell(runs: StudyRuns, line: Line, used: tuple[str, ...] = ()) -> Cell:
    return Cell(runs.title(line), str(line), used)


def text_cell(text: str) -> Cell:
    return Cell(text or MISSING, text)


def count_cell(value: float | None, used: tuple[str, ...] = ()) -> Cell:
    return Cell(count(value), value, used)


def share_cell(part: float | None, whole: int | None, among: int = 1) -> Cell:
    """``part`` as a share of ``whole``, divided by ``among``."""
    if part is None or not whole:
        return Cell(MISSING)
    share = part / among / whole
    return Cell(percent(share), share)


def scores_cell(values: Sequence[float], used: tuple[str, ...] = (), detail: str = "") -> Cell:
    """Mean and standard deviation of ``values``."""
    return Cell(score_text(values), mean_of(values), used, detail=detail)


def effort_cells(runs: StudyRuns, row: str, group: Sequence[Scored]) -> dict[str, Cell]:
    """Runs per target that a row is chosen from, if any row tunes; seconds of a run, alone and with its sources."""
    tuned = any(scored.trials for scored in runs.scored)
    by_run = {scored.record.run: scored.seconds for scored in group}  # including its trials
    return {
        **({"trials": count_cell(runs.study.trials_on_target(row))} if tuned else {}),
        "seconds": count_cell(mean_of(by_run.values())),
        "seconds with sources": count_cell(mean_of(scored.total_seconds for scored in group)),
    }


def group_cell(group: Sequence[Scored], detail: str = "") -> Cell:
    """Mean and standard deviation of the scores of ``group``."""
    return scores_cell([scored.value for scored in group], runs_of(group), detail)


def judged(cell: Cell, comparison: Comparison | None, against: str) -> Cell:
    """The cell with the verdict added, and the test in its small print."""
    if comparison is None:
        return cell
    test = comparison_text(comparison, against)
    return replace(cell, verdict=comparison.verdict, detail=f"{cell.detail}; {test}" if cell.detail else test)


def difference_cell(
    difference: float | None,
    used: tuple[str, ...] = (),
    comparison: Comparison | None = None,
    against: str = "",
    untested: str = "",
) -> Cell:
    """A difference in points with its verdict; without a comparison, ``untested`` is the small print."""
    if difference is None:
        return Cell(MISSING)
    detail = untested if comparison is None else ""
    return judged(Cell(points(difference), difference, used, detail=detail), comparison, against)


def score_cells(
    runs: StudyRuns,
    place: Place,
    targets: Sequence[str],
    planned: Mapping[str, int],
    mean: float | None,
    verdicts: Verdicts,
) -> dict[str, Cell]:
    """Scores of a place on the targets, first their mean if there are several; notes runs missing from ``planned``."""
    line, rows = place
    cells, against = {}, runs.title(runs.reference)
    for target in targets:
        group, comparison = runs.cell(line, target, rows), verdicts.get((place, target))
        details = [comparison_text(comparison, against)] if comparison else []
        if planned[target] > 1:
            details.append(f"{len(group)} of {planned[target]} runs")
        for entry in runs.entries(line, target, rows):
            if entry.error is not None:
                source = "" if entry.line == line else f"{entry.method} "
                details.append(f"{source}seed {entry.seed} failed: {entry.error}")
        values, verdict = [scored.value for scored in group], comparison.verdict if comparison else None
        text = score_text(values, planned[target])
        cells[runs.column(target)] = Cell(text, mean_of(values), runs_of(group), verdict, "; ".join(details))
    if len(targets) > 1:
        used = dict.fromkeys(run for cell in cells.values() for run in cell.runs) if mean is not None else ()
        there, whole = sum(len(runs.cell(line, t, rows)) for t in targets), sum(planned[t] for t in targets)
        fewer = f" ({there} of {whole} runs)" if mean is not None and there < whole else ""
        cell = Cell(f"{number(mean)}{fewer}", mean, tuple(used))
        cells = {"mean": judged(cell, verdicts.get((place, None)), against), **cells}
    return cells


def with_best(rows: Sequence[Mapping[str, Cell]], columns: Sequence[str]) -> list[dict[str, Cell]]:
    """Mark the highest score in every column."""
    highest = {}
    for name in columns if len(rows) > 1 else ():
        scores = [score for row in rows if isinstance(score := row[name].sort, float)]
        highest[name] = max(scores, default=None)
    return [
        {
            name: replace(cell, best=cell.sort is not None and cell.sort == highest.get(name))
            for name, cell in row.items()
        }
        for row in rows
    ]


def judge(family: Mapping[Key, Difference | None], looks: int) -> dict[Key, Comparison]:
    """The comparisons of one table, corrected for their number; leaves out what could not be paired.

    Args:
        looks: how often the study's results were looked at; the tests are corrected for this too.
    """
    known = {key: difference for key, difference in family.items() if difference is not None}
    return {key: difference.comparison(len(known) * looks) for key, difference in known.items()}


def against_reference(runs: StudyRuns, places: Iterable[Place], targets: Sequence[str]) -> Verdicts:
    """Every place against the study's reference on each target, and on the mean if the place has all targets."""
    family: dict[tuple[Place, str | None], Difference | None] = {}
    for place in places:
        line, rows = place
        if str(line) == runs.study.reference:
            continue
        ours = {t: runs.cell(line, t, rows) for t in targets}
        theirs = {t: runs.cell(runs.reference, t, rows) for t in targets}
        parts = {t: runs.difference(ours[t], theirs[t], t) for t in targets}
        family |= {(place, target): difference for target, difference in parts.items()}
        known = [difference for difference in parts.values() if difference is not None]
        if len(known) == len(targets) > 1:
            family[place, None] = mean_difference(known, runs.shared([[*ours[t], *theirs[t]] for t in targets]))
    return judge(family, runs.study.looks)
