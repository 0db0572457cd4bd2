"""Each fusion against the best that one would do without it, on all targets together."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pipeline.reporting.cells import difference_cell, judge, line_cell, text_cell
from pipeline.reporting.entries import Line
from pipeline.reporting.report import Cell, Table
from pipeline.reporting.runs import StudyRuns, mean_of, once, runs_of
from pipeline.reporting.text import interval_text, marks_note, points
from pipeline.settings.rows import METHODS, Row
from pipeline.stats.paired import Comparison, Difference, mean_difference

OPPONENTS: dict[str, Callable[[Row], bool]] = {
    "the target alone": lambda row: not row.joins,
    "sequential tuning": lambda row: METHODS[row.method].by_source,
    "one adapter": lambda row: row.method == "adapter",
    "any row without fusion": lambda _: True,
}
"""Kinds of rows. The best row of a kind stands for it, on each target its own."""


@dataclass(frozen=True)
class Duel:
    """A row of fusion against the best row of one kind on each target."""

    line: Line
    kind: str
    best: dict[str, Line]
    """By target: of the lines of the kind the one with the best mean over seeds on the rows that choose."""
    parts: dict[str, Difference]
    """By target, over the seeds of both."""
    comparison: Comparison | None = None
    """Of the mean over the targets."""


@once
def duels(runs: StudyRuns) -> list[Duel]:
    """Every row of fusion that has all targets against every kind of rows that has them."""
    methods = {line: runs.study.row(line.row) for line in runs.lines}
    fusions = [line for line, row in methods.items() if row.method == "fusion"]
    found = []
    for line in fusions:
        for kind, of_kind in OPPONENTS.items():
            others = [other for other, row in methods.items() if row.method != "fusion" and of_kind(row)]
            best = {target: other for target in runs.study.targets if (other := _best(runs, others, target))}
            pairs = ((target, runs.cell(line, target), runs.cell(other, target)) for target, other in best.items())
            parts = {target: runs.difference(ours, theirs, target) for target, ours, theirs in pairs}
            known = {target: difference for target, difference in parts.items() if difference is not None}
            if len(known) == len(runs.study.targets):
                found.append(Duel(line, kind, best, known))
    verdicts = judge({(duel.line, duel.kind): mean_difference([*duel.parts.values()]) for duel in found})
    return [Duel(one.line, one.kind, one.best, one.parts, verdicts[one.line, one.kind]) for one in found]


def _best(runs: StudyRuns, lines: list[Line], target: str) -> Line | None:
    scores = {line: mean_of(scored.score.dev for scored in runs.cell(line, target)) for line in lines}
    return max((line for line in lines if scores[line] is not None), key=lambda line: scores[line] or 0.0, default=None)


def opponents_table(runs: StudyRuns) -> Table | None:
    """One line a fusion and kind of rows; None in a study without both."""
    return Table.of(
        "opponents", [_row(runs, duel) for duel in duels(runs)], marks=marks_note("the best row", duels(runs))
    )


def _row(runs: StudyRuns, duel: Duel) -> dict[str, Cell]:
    cells = {"method": line_cell(runs, duel.line), "against the best of": text_cell(duel.kind)}
    used: list[str] = []
    for target, part in duel.parts.items():
        both = runs_of((*runs.cell(duel.line, target), *runs.cell(duel.best[target], target)))
        cells[target] = difference_cell(part.value, both, untested=f"against {runs.title(duel.best[target])}")
        used += both
    mean = mean_of(part.value for part in duel.parts.values())
    return cells | {"mean": difference_cell(mean, tuple(dict.fromkeys(used)), duel.comparison, "the best rows")}


def opponents_sentences(runs: StudyRuns) -> Iterator[str]:
    """How each fusion does against the best of all rows without fusion, on the mean of the targets."""
    for duel in duels(runs):
        if duel.kind == [*OPPONENTS][-1] and duel.comparison is not None:
            names = ", ".join(dict.fromkeys(runs.title(line) for line in duel.best.values()))
            yield (
                f"{runs.title(duel.line)} against the best row without fusion of each target ({names}):"
                f" {points(duel.comparison.difference)} points on the mean ({interval_text(duel.comparison)}),"
                f" {duel.comparison.verdict}."
            )
