"""The main table: every row on every target, tested against the reference, with its cost beside it."""

import statistics
from collections.abc import Iterator

from pipeline.reporting.cells import Verdicts, against_reference, count_cell, line_cell, score_cells
from pipeline.reporting.entries import Line
from pipeline.reporting.report import Cell, Table
from pipeline.reporting.runs import StudyRuns, mean_of, once, records_of, seconds_of, trials_cells
from pipeline.reporting.text import MISSING, amount_text, comparisons, interval_text, listed, number, percent, points
from pipeline.stats.metrics import overall
from pipeline.stats.paired import LEVEL


@once
def main_verdicts(runs: StudyRuns) -> Verdicts:
    return against_reference(runs, [(line, None) for line in runs.lines], runs.study.targets)


def main_table(runs: StudyRuns) -> Table | None:
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
        **{head: count_cell(number) for head, number in trials_cells(runs, group).items()},
        "seconds": count_cell(seconds_of(group)),
        "with sources": count_cell(mean_of(scored.total_seconds for scored in group)),
        "peak memory, MB": count_cell(max((cost.peak_memory_mb for cost in costs), default=None)),
        "epochs": Cell(", ".join(map(str, epochs)) or MISSING, max(epochs, default=None)),
    }


def main_sentences(runs: StudyRuns) -> Iterator[str]:
    """What the tests say on the mean and on every target: each better or worse line, and the rest in one sentence.

    Sequential tuning has a line a source, which would drown the others: it is left to the tables.
    """
    targets, verdicts, against = runs.study.targets, main_verdicts(runs), runs.title(runs.reference)
    scopes: dict[str | None, str] = {None: f"the mean of {listed(targets)}"} if len(targets) > 1 else {}
    for scope, where in (scopes | {target: target for target in targets}).items():
        lines = [line for line in runs.lines if not line.source and ((line, None), scope) in verdicts]
        same = []
        for line in lines:
            title, comparison = runs.title(line), verdicts[(line, None), scope]
            if comparison.significant:
                amount = f"{amount_text(comparison)}{_share(runs, line)}"
                yield f"On {where}, {title} is {comparison.verdict} than {against} by {amount}."
            else:
                same.append(f"{title} ({points(comparison.difference)} points, {interval_text(comparison)})")
        if same:
            yield f"On {where}, the difference from {against} is not significant for {listed(same)}."


def _share(runs: StudyRuns, line: Line) -> str:
    """``, training 24 % of the parameters`` where it trains fewer than the reference."""
    trained = ((s.record.cost.trainable_parameters for s in runs.all(one)) for one in (line, runs.reference))
    ours, theirs = map(mean_of, trained)
    if ours is None or theirs is None or ours >= 0.995 * theirs:
        return ""
    return f", training {percent(ours / theirs)} of the parameters"
