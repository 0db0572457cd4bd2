"""What each line of the main table selected on the rows that it is scored on: more options flatter the score more."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from pipeline.records.ledger import RunRecord
from pipeline.reporting.cells import line_cell
from pipeline.reporting.entries import Line
from pipeline.reporting.report import Cell, Table
from pipeline.reporting.runs import Scored, StudyRuns, continued
from pipeline.reporting.text import MISSING

Choices = Mapping[str, int]
"""What was selected, and from how many options."""


def choices_table(runs: StudyRuns) -> Table:
    columns: dict[str, Callable[[Line], Cell]] = {
        "method": lambda line: line_cell(runs, line),
        "choices, and from how many": lambda line: Cell(_text(runs, line)),
    }
    notes = (
        "Selected by the dev scores that the tables show; in brackets, from how many options. Each selection makes a"
        " score optimistic, and more options make it more so. The tests do not correct for this.",
    )
    return Table.of("choices", "What was chosen on the scored rows", runs.lines, columns, notes)


def _text(runs: StudyRuns, line: Line) -> str:
    """``epoch (4), anchor (sts 2)``: tasks are named where not all of them had the choice, or not as many options."""
    by_target = {
        target: _most([_choices(runs, line.row, scored) for scored in group])
        for target, group in runs.groups(line).items()
    }
    if not by_target:
        return MISSING
    kinds = dict.fromkeys(kind for choices in by_target.values() for kind in choices)
    return ", ".join(f"{kind} ({_sizes(kind, by_target)})" for kind in kinds) or "nothing"


def _choices(runs: StudyRuns, row: str, scored: Scored) -> Choices:
    """What was selected for one run, in order."""
    record, target = scored.record, scored.entry.target
    sizes = dict(_earlier_epochs(runs, record, target))
    sizes["own adapter"] = len(runs.study.row(row).own)
    sizes["anchor"] = len(record.anchor_candidates)
    if target in record.trained_on:
        epochs = runs.curve(record.run)["epoch"]
        what = "epoch for all its tasks" if record.kind == "multitask" else "epoch"
        sizes[f"{what} or start" if (epochs == 0).any() else what] = len(epochs)
    return {kind: size for kind, size in sizes.items() if size > 1}


def _earlier_epochs(runs: StudyRuns, record: RunRecord, target: str) -> Iterator[tuple[str, int]]:
    """The runs behind a run whose epoch was selected on the target's rows."""
    for source in continued(record):
        before = runs.ledger.find(source.run)
        if before is None:
            continue
        if target in before.trained_on:
            yield "own adapter's epoch" if before.kind == "adapter" else "earlier epoch", len(runs.curve(before.run))
        yield from _earlier_epochs(runs, before, target)


def _most(seeds: Sequence[Choices]) -> Choices:
    """Each choice with the most options that a seed had."""
    kinds = dict.fromkeys(kind for choices in seeds for kind in choices)
    return {kind: max(choices.get(kind, 0) for choices in seeds) for kind in kinds}


def _sizes(kind: str, by_target: Mapping[str, Choices]) -> str:
    sizes = {target: choices.get(kind) for target, choices in by_target.items()}
    if len(set(sizes.values())) == 1:
        return str(next(iter(sizes.values())))
    return ", ".join(f"{target} {size}" for target, size in sizes.items() if size is not None)
