"""Forgetting: what a model still knows of the first task after it was trained on the second."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from pipeline.records.ledger import RunRecord
from pipeline.reporting.report import Cell, Table
from pipeline.reporting.runs import Scored, StudyRuns, resample_tables, row_of
from pipeline.reporting.text import MISSING, comparison_text, points, score_text
from pipeline.reporting.verdicts import judge, short_test_note
from pipeline.stats.metrics import Metric
from pipeline.stats.paired import Comparison, Resampled


@dataclass(frozen=True)
class Change:
    """The score on ``source`` before and after training on ``target``, over the seeds where both are known."""

    row: str
    source: str
    target: str
    metric: Metric
    before: tuple[float, ...]
    after: tuple[float, ...]
    runs: tuple[str, ...]
    comparison: Comparison | None = None
    proof: str = ""
    """What shows that nothing can have changed; empty where the score was measured again."""

    @property
    def difference(self) -> float:
        return statistics.mean(self.after) - statistics.mean(self.before)


def changes(runs: StudyRuns) -> list[Change]:
    """What every row that goes from one task to another did to the first.

    Sequential tuning is scored again, with the first task's head. Adapters and fusion leave the backbone and the
    first task's adapter as they were, so its score is what it was: counted only where the hashes taken after training
    say so.
    """
    found = [
        change for label in runs.labels for source in _before(runs, label) for change in _measured(runs, label, source)
    ]
    family = {
        (change.row, change.source, change.target): resampled
        for change in found
        if (resampled := _resampled(runs, change)) is not None
    }
    verdicts = judge(family)
    measured = [
        Change(**{**vars(change), "comparison": verdicts.get((change.row, change.source, change.target))})
        for change in found
    ]
    return measured + [change for name in runs.rows for change in _proven(runs, name)]


def forgetting_table(runs: StudyRuns, found: list[Change]) -> Table | None:
    """One line a row of the study and an ordered pair of tasks; None where nothing was measured."""
    if not found:
        return None
    columns = ("method", "learned first", "then", "before", "after", "change, points", "unchanged (sha256)")
    rows = tuple(
        (
            Cell(runs.title(change.row), change.row),
            Cell(change.source, change.source),
            Cell(change.target, change.target),
            Cell(score_text(change.before), statistics.mean(change.before), change.runs),
            Cell(score_text(change.after), statistics.mean(change.after), change.runs),
            _change_cell(change),
            Cell(change.proof or MISSING, change.proof),
        )
        for change in found
    )
    notes = (
        "Scores on dev of the task learned first, with its own head, before and after training on the second.",
        *short_test_note("the score before", sum(change.comparison is not None for change in found)),
        "Adapters and fusion: the first task is answered by the frozen backbone and its own adapter; both have the same"
        " sha256 after training on the second task as before, so every prediction is the same.",
    )
    return Table("forgetting", "Forgetting", columns, rows, notes)


def _change_cell(change: Change) -> Cell:
    if change.comparison is None:
        return Cell(points(change.difference), change.difference, change.runs, None, change.proof)
    told = comparison_text(change.comparison, "before")
    return Cell(points(change.difference), change.difference, change.runs, change.comparison.verdict, told)


def _before(runs: StudyRuns, label: str) -> tuple[str, ...]:
    """The tasks that a line of sequential tuning has learned before its last."""
    order = runs.study.row(row_of(label)).order
    source = label.partition(":")[2]
    return order[:-1] if order is not None else (source,) if source else ()


def _measured(runs: StudyRuns, label: str, source: str) -> Iterable[Change]:
    for target in runs.study.targets:
        cells = runs.cell(label, target)
        group = [s for s in cells if s.record.task == target and source in s.record.others]
        scores = [(s.record, s.record.others[source]) for s in group]
        known = [(record, other) for record, other in scores if other.before is not None]
        if known:
            before = tuple(other.before for _, other in known if other.before is not None)
            after = tuple(other.dev for _, other in known)
            used = tuple(record.run for record, _ in known)
            yield Change(row_of(label), source, target, known[0][1].metric, before, after, used)


def _resampled(runs: StudyRuns, change: Change) -> Resampled | None:
    """After against before on the same examples; before are the predictions of the runs that came first."""
    pairs = []
    for name in change.runs:
        start = _learned(runs, name, change.source)
        if start is None:
            return None
        pairs.append((runs.predictions(name, change.source), runs.predictions(start, change.source)))
    return resample_tables(change.metric, pairs, seed=0)


def _learned(runs: StudyRuns, run: str, task: str) -> str | None:
    """The run, of those that ``run`` goes back to, that learned ``task``."""
    record = runs.ledger.find(run)
    while record is not None and record.task != task:
        record = runs.ledger.find(record.sources[0].run) if record.sources else None
    return record.run if record is not None else None


def _proven(runs: StudyRuns, name: str) -> Iterable[Change]:
    for target in runs.study.targets:
        group = runs.cell(name, target)
        if not group or any(scored.record.kind not in ("adapter", "fusion") for scored in group):
            continue
        for source in runs.study.all_tasks:
            if source == target:
                continue
            known = [(scored, first, proof) for scored in group for first, proof in _kept(runs, name, scored, source)]
            if known:
                scores = tuple(first.dev for _, first, _ in known)
                used = tuple(run for scored, first, _ in known for run in (first.run, scored.record.run))
                shown = ", ".join(dict.fromkeys(proof for *_, proof in known))
                metric = known[0][1].metric
                yield Change(name, source, target, metric, scores, scores, tuple(dict.fromkeys(used)), None, shown)


def _kept(runs: StudyRuns, name: str, scored: Scored, source: str) -> Iterable[tuple[RunRecord, str]]:
    """The run that answers ``source``, and what shows that it does so still after ``scored`` was trained."""
    record = scored.record
    backbone = record.unchanged.get("backbone")
    if backbone is None or backbone != record.identity["backbone"]["weights"]:
        return
    if record.kind == "adapter":
        # Nothing of another task's adapter is in this run; what the two share is the backbone.
        for other in runs.cell(name, source):
            if other.entry.seed == scored.entry.seed:
                yield other.record, f"backbone {backbone[:12]}"
        return
    for used in record.sources:
        first, digest = runs.ledger.find(used.run), record.unchanged.get(used.task)
        if used.task == source and first is not None and digest is not None:
            yield first, f"backbone {backbone[:12]}, adapter {digest[:12]}"
