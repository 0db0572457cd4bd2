"""What each line of the main table chose on the rows that it is scored on: more to choose from flatters more."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pipeline.records.ledger import RunRecord
from pipeline.reporting.cells import line_cell
from pipeline.reporting.entries import Line
from pipeline.reporting.report import Cell, Table
from pipeline.reporting.runs import Scored, StudyRuns, continued, selected_on
from pipeline.reporting.text import MISSING

Choices = Mapping[str, int]
"""What was chosen, and from how many."""


def choices_table(runs: StudyRuns) -> Table:
    """One line a line of the main table."""
    rows = tuple((line_cell(runs, line), Cell(_text(runs, line))) for line in runs.lines)
    notes = (
        "By the dev scores that the tables show, and in brackets from how many. Every choice makes a score optimistic,"
        " and more choices make it more so; the tests do not account for it.",
    )
    return Table("choices", "What was chosen on the scored rows", ("method", "choices, and from how many"), rows, notes)


def _text(runs: StudyRuns, line: Line) -> str:
    """``epoch (4), anchor (sts 2)``: tasks are named where there was no choice on all, or not from as many."""
    by_target = {
        target: _together(_choices(runs, line.row, scored) for scored in group)
        for target, group in runs.groups(line).items()
    }
    if not by_target:
        return MISSING
    kinds = dict.fromkeys(kind for choices in by_target.values() for kind in choices)
    return ", ".join(f"{kind} ({_sizes(kind, by_target)})" for kind in kinds) or "nothing"


def _choices(runs: StudyRuns, row: str, scored: Scored) -> Choices:
    """What was chosen for one run, in the order in which it was."""
    record, target = scored.record, scored.entry.target
    sizes = dict(_earlier_epochs(runs, record, target))
    sizes["own adapter"] = len(runs.study.row(row).own)
    sizes["anchor"] = len(record.anchor_candidates)
    if selected_on(record, target):
        epochs = runs.curve(record.run)["epoch"]
        what = "epoch for all its tasks" if record.kind == "multitask" else "epoch"
        sizes[f"{what} or start" if (epochs == 0).any() else what] = len(epochs)
    return {kind: size for kind, size in sizes.items() if size > 1}


def _earlier_epochs(runs: StudyRuns, record: RunRecord, target: str) -> Iterator[tuple[str, int]]:
    """Of the runs that a run goes on from, those whose epoch was chosen on the target's rows."""
    for source in continued(record):
        before = runs.ledger.find(source.run)
        if before is None:
            continue
        if selected_on(before, target):
            yield "own adapter's epoch" if before.kind == "adapter" else "earlier epoch", len(runs.curve(before.run))
        yield from _earlier_epochs(runs, before, target)


def _together(several: Iterator[Choices]) -> dict[str, int]:
    """Over seeds, the most."""
    together: dict[str, int] = {}
    for choices in several:
        for kind, size in choices.items():
            together[kind] = max(size, together.get(kind, 0))
    return together


def _sizes(kind: str, by_target: Mapping[str, Choices]) -> str:
    sizes = {target: choices.get(kind) for target, choices in by_target.items()}
    if len(set(sizes.values())) == 1:
        return str(next(iter(sizes.values())))
    return ", ".join(f"{target} {size}" for target, size in sizes.items() if size is not None)
