"""Rows that average several runs of one method, beside the mean score of these runs: what averaging itself gains."""

from collections.abc import Iterable, Iterator
from functools import cache
from typing import NamedTuple

from pipeline.records.studies import Line
from pipeline.reporting import report
from pipeline.reporting.report import Cell, Table
from pipeline.reporting.runs import Scored, StudyRuns, runs_of
from pipeline.settings.study import Study
from pipeline.stats.paired import Comparison, Difference, mean_difference


class Gain(NamedTuple):
    """The difference between an average of runs and the mean score of these runs."""

    score: float
    """Mean over targets."""
    parts: dict[str, Difference]
    """By target."""
    comparison: Comparison
    """Test of the mean over targets."""


@cache
def gains(runs: StudyRuns) -> dict[Line, Gain]:
    """Every line that averages all its runs, selecting none, and has all targets."""
    found, means = {}, {}
    for line in runs.lines:
        score = runs.mean(line)
        if score is None or not _is_average(runs.study, line.row):
            continue
        parts = {target: runs.difference_of_pairs(_pairs(group), target) for target, group in runs.groups(line).items()}
        known = {target: difference for target, difference in parts.items() if difference is not None}
        found[line] = score, known
        means[line] = mean_difference([*known.values()], runs.shared([*runs.groups(line).values()]))
    return {line: Gain(*found[line], test) for line, test in report.judge(means, runs.study.looks).items()}


def _is_average(study: Study, name: str) -> bool:
    """Whether a row is the mean of all its runs: it selects none, and nothing trains further."""
    row = study.row(name)
    if not row.experts:
        return False
    if row.kind.is_ensemble:
        return row.rule == "uniform"
    return all(study.recipe_for(name, task, trial=trial).is_averaged for task in study.targets for trial in row.trials)


def _pairs(group: Iterable[Scored]) -> list[tuple[str, str]]:
    """The run of each seed beside each of the runs that it averages."""
    return [(scored.record.run, source.run) for scored in group for source in scored.record.sources]


def averaging_table(runs: StudyRuns) -> Table | None:
    """One line per line of :func:`gains`; None if there is none."""
    rows, against = [], "the mean score of its runs"
    for line, (score, parts, test) in gains(runs).items():
        used, single = runs_of(runs.all(line)), score - test.difference
        cells = {target: report.difference_cell(part.value) for target, part in parts.items()}
        rows.append({
            "method": report.line_cell(runs, line, used),
            "score of a run": Cell(report.number(single), single),
            "score": Cell(report.number(score), score),
            "difference, points": report.difference_cell(test.difference, used, test, against),
            **(cells if len(cells) > 1 else {}),
        })  # fmt: skip
    return Table.of("averaging", rows, marks=report.marks_note(against, rows))


def averaging_sentences(runs: StudyRuns) -> Iterator[str]:
    """What averages gain over their runs, on the mean over targets."""
    if found := {runs.title(line): gain.comparison for line, gain in gains(runs).items()}:
        gained, where = "; ".join(report.amounts(found, runs.study)), report.where_text(runs.study)
        detectable = report.detectable_text([*found.values()])
        yield f"Against the mean score of the runs that are averaged, on {where}: {gained}. {detectable}".strip()
