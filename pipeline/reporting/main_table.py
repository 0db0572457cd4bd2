"""The main table: every row on every target, tested against the reference, with its cost beside it."""

import statistics
from collections.abc import Callable

from pipeline.records.ledger import RunRecord
from pipeline.reporting.cells import count_cell, line_cell, mean_cell, mean_of, target_cell
from pipeline.reporting.entries import Line
from pipeline.reporting.report import Cell, Table
from pipeline.reporting.runs import StudyRuns, once, records_of
from pipeline.reporting.text import MISSING
from pipeline.reporting.verdicts import Verdicts, against_reference, comparisons
from pipeline.stats.metrics import overall
from pipeline.stats.paired import LEVEL


@once
def main_verdicts(runs: StudyRuns) -> Verdicts:
    return against_reference(runs, [(line, None) for line in runs.lines], runs.study.targets)


def main_table(runs: StudyRuns) -> Table:
    targets, verdicts = runs.study.targets, main_verdicts(runs)

    def records(line: Line) -> list[RunRecord]:
        return records_of(runs.all(line))

    def score(target: str) -> Callable[[Line], Cell]:
        return lambda line: target_cell(runs, (line, None), target, len(runs.study.seeds), verdicts)

    columns: dict[str, Callable[[Line], Cell]] = {
        "method": lambda line: line_cell(runs, line),
        **{runs.column(target): score(target) for target in targets},
    }
    if len(targets) > 1:
        columns |= {
            "mean": lambda line: mean_cell(
                runs, (line, None), targets, _means(runs, line)[0], verdicts.get(((line, None), None))
            ),
            "mean, (r+1)/2": lambda line: mean_cell(runs, (line, None), targets, _means(runs, line)[1], None),
        }
    columns |= {
        "trainable parameters": lambda line: count_cell(mean_of(r.cost.trainable_parameters for r in records(line))),
        "seconds": lambda line: count_cell(mean_of(record.cost.seconds for record in records(line))),
        "with sources": lambda line: count_cell(mean_of(scored.total_seconds for scored in runs.all(line))),
        "peak memory, MB": lambda line: count_cell(max((r.cost.peak_memory_mb for r in records(line)), default=None)),
        "epochs": lambda line: _epochs(runs, line),
    }
    against = runs.title(runs.reference)
    return Table.of("main", runs.lines, columns, against=against, level=LEVEL, comparisons=comparisons(verdicts))


def _means(runs: StudyRuns, line: Line) -> tuple[float | None, float | None]:
    """The mean over the targets, plain and with r rescaled to (r+1)/2; None where a target has no run."""
    groups = runs.groups(line)
    if len(groups) < len(runs.study.targets):
        return None, None
    return overall({target: statistics.mean(s.value for s in group) for target, group in groups.items()}, runs.metrics)


def _epochs(runs: StudyRuns, line: Line) -> Cell:
    epochs = sorted({scored.epochs for scored in runs.all(line)})
    return Cell(", ".join(map(str, epochs)) or MISSING, max(epochs, default=None))
