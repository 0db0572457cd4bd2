"""The main table: every row on every target, tested against the reference, with its cost beside it."""

from __future__ import annotations

import statistics

from pipeline.reporting.cells import count_cell, group_cell, line_cell, mean_cell, mean_of
from pipeline.reporting.entries import Line
from pipeline.reporting.report import Cell, Table
from pipeline.reporting.runs import StudyRuns, once, records_of, runs_of
from pipeline.reporting.text import MISSING
from pipeline.reporting.verdicts import Verdicts, against_reference, full_test_note
from pipeline.stats.metrics import overall


@once
def main_verdicts(runs: StudyRuns) -> Verdicts:
    return against_reference(runs, [(line, None) for line in runs.lines], runs.study.targets)


def main_table(runs: StudyRuns) -> Table:
    targets = runs.study.targets
    columns = (
        "method",
        *map(runs.column, targets),
        *(("mean", "mean, (r+1)/2") if len(targets) > 1 else ()),
        "trainable parameters",
        "seconds",
        "with sources",
        "peak memory, MB",
        "epochs",
    )
    notes = (
        *full_test_note(runs.title(runs.reference), main_verdicts(runs)),
        "Scores are means over seeds ± their sample standard deviation; seconds are of one run, without and with the"
        " runs that it is built on.",
        "What each row chose on the dev rows that are scored here, its epoch among it, stands in the next table.",
    )
    return Table("main", "Scores on dev", columns, tuple(_row(runs, line) for line in runs.lines), notes)


def _row(runs: StudyRuns, line: Line) -> tuple[Cell, ...]:
    study, verdicts, reference = runs.study, main_verdicts(runs), runs.title(runs.reference)
    groups = runs.groups(line)
    scores = [
        group_cell(
            groups.get(target, []),
            len(study.seeds),
            verdicts.get(((line, None), target)),
            reference,
            _missing(runs, line, target),
        )
        for target in study.targets
    ]
    scored = [scored for group in groups.values() for scored in group]
    records = records_of(scored)
    cells = [line_cell(runs, line), *scores]
    if len(study.targets) > 1:
        complete = len(groups) == len(study.targets)
        means = {target: statistics.mean(s.value for s in group) for target, group in groups.items()}
        plain, normalised = overall(means, runs.metrics) if complete else (None, None)
        used = runs_of(scored) if complete else ()
        cells += [
            mean_cell(plain, used, verdicts.get(((line, None), None)), reference),
            mean_cell(normalised, used, None, reference),
        ]
    epochs = sorted({one.epochs for one in scored})
    return (
        *cells,
        count_cell(mean_of(record.cost.trainable_parameters for record in records)),
        count_cell(mean_of(record.cost.seconds for record in records)),
        count_cell(mean_of(one.total_seconds for one in scored)),
        count_cell(max((record.cost.peak_memory_mb for record in records), default=None)),
        Cell(", ".join(map(str, epochs)) or MISSING, max(epochs, default=None)),
    )


def _missing(runs: StudyRuns, line: Line, target: str) -> str:
    failed = [entry for entry in runs.entries(line, target) if entry.error is not None]
    return "; ".join(f"seed {entry.seed} failed: {entry.error}" for entry in failed)
