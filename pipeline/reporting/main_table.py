"""The main table: every row on every target, tested against the reference, with its cost beside it."""

import statistics

from pipeline.reporting.cells import count_cell, line_cell, mean_of, score_cells
from pipeline.reporting.entries import Line
from pipeline.reporting.report import Cell, Table
from pipeline.reporting.runs import StudyRuns, once, records_of
from pipeline.reporting.text import MISSING, number
from pipeline.reporting.verdicts import Verdicts, against_reference, comparisons
from pipeline.stats.metrics import overall
from pipeline.stats.paired import LEVEL


@once
def main_verdicts(runs: StudyRuns) -> Verdicts:
    return against_reference(runs, [(line, None) for line in runs.lines], runs.study.targets)


def main_table(runs: StudyRuns) -> Table:
    against, family = runs.title(runs.reference), comparisons(main_verdicts(runs))
    rows = [_row(runs, line) for line in runs.lines]
    return Table.of("main", rows, against=against, level=LEVEL, comparisons=family)


def _row(runs: StudyRuns, line: Line) -> dict[str, Cell]:
    targets, group = runs.study.targets, runs.all(line)
    costs, epochs = [record.cost for record in records_of(group)], sorted({scored.epochs for scored in group})
    mean = rescaled = None  # over the targets, plain and with r rescaled to (r+1)/2
    scores = {target: statistics.mean(s.value for s in own) for target, own in runs.groups(line).items()}
    if len(scores) == len(targets):
        mean, rescaled = overall(scores, runs.metrics)
    planned = dict.fromkeys(targets, len(runs.study.seeds))
    cells = score_cells(runs, (line, None), targets, planned, mean, main_verdicts(runs))
    if len(targets) > 1:
        cells["mean, (r+1)/2"] = Cell(number(rescaled), rescaled, cells["mean"].runs)
    return {
        "method": line_cell(runs, line),
        **cells,
        "trainable parameters": count_cell(mean_of(cost.trainable_parameters for cost in costs)),
        "seconds": count_cell(mean_of(cost.seconds for cost in costs)),
        "with sources": count_cell(mean_of(scored.total_seconds for scored in group)),
        "peak memory, MB": count_cell(max((cost.peak_memory_mb for cost in costs), default=None)),
        "epochs": Cell(", ".join(map(str, epochs)) or MISSING, max(epochs, default=None)),
    }
