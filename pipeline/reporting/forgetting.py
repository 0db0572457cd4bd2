"""Forgetting: what a model still knows of the first task after it was trained on the second."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from pipeline.records.ledger import RunRecord
from pipeline.reporting.cells import difference_cell, line_cell, scores_cell, text_cell
from pipeline.reporting.entries import Line
from pipeline.reporting.report import Cell, Table
from pipeline.reporting.runs import Scored, StudyRuns, once
from pipeline.reporting.verdicts import judge, short_test_note
from pipeline.stats.paired import Comparison, Resampled


@dataclass(frozen=True)
class Change:
    """The score on ``source`` before and after training on ``target``, over the seeds where both are known."""

    row: str
    source: str
    target: str
    before: tuple[float, ...]
    after: tuple[float, ...]
    runs: tuple[str, ...]
    comparison: Comparison | None = None
    proof: str = ""
    """What shows that nothing can have changed; empty where the score was measured again."""

    @property
    def difference(self) -> float:
        return statistics.mean(self.after) - statistics.mean(self.before)


@once
def changes(runs: StudyRuns) -> list[Change]:
    """What every row that goes from one task to another did to the first.

    Sequential tuning is scored again, with the first task's head. Adapters and fusion leave the backbone and the
    first task's adapter as they were, so its score is what it was: counted only where the hashes taken after training
    say so.
    """
    measured = [
        change for line in runs.lines for source in _before(runs, line) for change in _measured(runs, line, source)
    ]
    verdicts = judge({_key(change): _resampled(runs, change) for change in measured})
    measured = [replace(change, comparison=verdicts.get(_key(change))) for change in measured]
    return measured + [change for name in runs.rows for change in _proven(runs, name)]


def _key(change: Change) -> tuple[str, str, str]:
    return change.row, change.source, change.target


def forgetting_table(runs: StudyRuns) -> Table | None:
    """One line a row of the study and an ordered pair of tasks; None where nothing was measured."""
    found = changes(runs)
    if not found:
        return None
    columns: dict[str, Callable[[Change], Cell]] = {
        "method": lambda change: line_cell(runs, Line(change.row)),
        "learned first": lambda change: text_cell(change.source),
        "then": lambda change: text_cell(change.target),
        "before": lambda change: scores_cell(change.before, change.runs),
        "after": lambda change: scores_cell(change.after, change.runs),
        "change, points": lambda change: difference_cell(
            change.difference, change.runs, change.comparison, "before", change.proof
        ),
        "unchanged (sha256)": lambda change: text_cell(change.proof),
    }
    notes = (
        "Scores on dev of the task learned first, with its own head, before and after training on the second.",
        *short_test_note("the score before", [change for change in found if change.comparison is not None]),
        "Adapters and fusion: the first task is answered by the frozen backbone and its own adapter; both have the same"
        " sha256 after training on the second task as before, so every prediction is the same.",
    )
    return Table.of("forgetting", "Forgetting", found, columns, notes)


def _before(runs: StudyRuns, line: Line) -> tuple[str, ...]:
    """The tasks that a line of sequential tuning has learned before its last."""
    order = runs.study.row(line.row).order
    return order[:-1] if order is not None else (line.source,) if line.source else ()


def _measured(runs: StudyRuns, line: Line, source: str) -> Iterable[Change]:
    for target, cell in runs.groups(line).items():
        group = [s for s in cell if s.record.task == target and source in s.record.others]
        scores = [(s.record, s.record.others[source]) for s in group]
        known = [(record, other) for record, other in scores if other.before is not None]
        if known:
            before = tuple(other.before for _, other in known if other.before is not None)
            after = tuple(other.dev for _, other in known)
            used = tuple(record.run for record, _ in known)
            yield Change(line.row, source, target, before, after, used)


def _resampled(runs: StudyRuns, change: Change) -> Resampled | None:
    """After against before on the same examples; before are the predictions of the runs that came first."""
    pairs = []
    for name in change.runs:
        start = _learned(runs, name, change.source)
        if start is None:
            return None
        pairs.append((name, start))
    return runs.resampled_pairs(pairs, change.source, seed=0)


def _learned(runs: StudyRuns, run: str, task: str) -> str | None:
    """The run, of those that ``run`` goes back to, that learned ``task``."""
    record = runs.ledger.find(run)
    while record is not None and record.task != task:
        record = runs.ledger.find(record.sources[0].run) if record.sources else None
    return record.run if record is not None else None


def _proven(runs: StudyRuns, name: str) -> Iterable[Change]:
    for target, group in runs.groups(Line(name)).items():
        if any(scored.record.kind not in ("adapter", "fusion") for scored in group):
            continue
        for source in runs.study.all_tasks:
            if source == target:
                continue
            known = [(scored, first, proof) for scored in group for first, proof in _kept(runs, name, scored, source)]
            if known:
                scores = tuple(first.dev for _, first, _ in known)
                used = tuple(run for scored, first, _ in known for run in (first.run, scored.record.run))
                shown = ", ".join(dict.fromkeys(proof for *_, proof in known))
                yield Change(name, source, target, scores, scores, tuple(dict.fromkeys(used)), None, shown)


def _kept(runs: StudyRuns, name: str, scored: Scored, source: str) -> Iterable[tuple[RunRecord, str]]:
    """The run that answers ``source``, and what shows that it does so still after ``scored`` was trained."""
    record = scored.record
    backbone = record.unchanged.get("backbone")
    if backbone is None or backbone != record.identity["backbone"]["weights"]:
        return
    if record.kind == "adapter":
        # Nothing of another task's adapter is in this run; what the two share is the backbone.
        for other in runs.cell(Line(name), source):
            if other.entry.seed == scored.entry.seed:
                yield other.record, f"backbone {backbone[:12]}"
        return
    for used in record.sources:
        first, digest = runs.ledger.find(used.run), record.unchanged.get(used.task)
        if used.task == source and first is not None and digest is not None:
            yield first, f"backbone {backbone[:12]}, adapter {digest[:12]}"
