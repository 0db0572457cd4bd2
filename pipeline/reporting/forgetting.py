"""Forgetting: how well a model still answers its first task after training on a second."""

import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import product

from pipeline.records.ledger import RunRecord
from pipeline.reporting.cells import difference_cell, judge, line_cell, scores_cell, text_cell
from pipeline.reporting.entries import Line
from pipeline.reporting.report import Table
from pipeline.reporting.runs import Scored, StudyRuns, once
from pipeline.reporting.text import capital, interval_text, listed, marks_note, points
from pipeline.stats.paired import Comparison


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
    """The hashes that prove that nothing changed; empty where the score was measured again."""

    @property
    def difference(self) -> float:
        return statistics.mean(self.after) - statistics.mean(self.before)


@once
def changes(runs: StudyRuns) -> list[Change]:
    """How training on a second task changed the score on the first, for every row that has both.

    Sequential tuning is scored again with the first task's head. Adapters and fusion change neither the backbone nor
    the first task's adapter, so the score stays the same. Such a row is listed only if the hashes taken after training
    prove it.
    """
    measured = [change for line in runs.lines for change in _measured(runs, line)]
    pairs = {c: [(run, _learned(runs, run, c.source)) for run in c.runs] for c in measured}
    verdicts = judge({c: runs.difference_of_pairs(own, c.source) for c, own in pairs.items()})
    tested = [replace(change, comparison=verdicts.get(change)) for change in measured]
    return tested + [change for name in runs.rows for change in _proven(runs, name)]


def forgetting_table(runs: StudyRuns) -> Table | None:
    """One line a row of the study and an ordered pair of tasks; None where nothing was measured."""
    all_changes = changes(runs)
    rows = [
        {
            "method": line_cell(runs, Line(change.row)),
            "learned first": text_cell(change.source),
            "then": text_cell(change.target),
            "before": scores_cell(change.before, change.runs),
            "after": scores_cell(change.after, change.runs),
            "change, points": difference_cell(
                change.difference, change.runs, change.comparison, "before", change.proof
            ),
            "unchanged (sha256)": text_cell(change.proof),
        }
        for change in all_changes
    ]
    marks = marks_note("the score before", [change for change in all_changes if change.comparison is not None])
    return Table.of("forgetting", rows, marks=marks)


def _measured(runs: StudyRuns, line: Line) -> Iterable[Change]:
    """What a line of sequential tuning scores on the tasks that it was trained on before its last."""
    order = runs.study.row(line.row).order
    sources = order[:-1] if order is not None else (line.source,) if line.source else ()
    for source, (target, group) in product(sources, runs.groups(line).items()):
        trained = [scored.record for scored in group if scored.record.trained_on == (target,)]
        known = [
            (score.before, score.value, record.run)
            for record in trained
            if (score := record.scores.get(source)) is not None and score.before is not None
        ]
        if known:
            before, after, used = zip(*known, strict=True)
            yield Change(line.row, source, target, before, after, used)


def _learned(runs: StudyRuns, run: str, task: str) -> str | None:
    """The run among the ancestors of ``run`` that was trained on ``task``; None where it is gone."""
    record = runs.ledger.find(run)
    while record is not None and record.task != task:
        record = runs.ledger.find(record.sources[0].run) if record.sources else None
    return record.run if record is not None else None


def _proven(runs: StudyRuns, name: str) -> Iterable[Change]:
    for (target, group), source in product(runs.groups(Line(name)).items(), runs.study.all_tasks):
        if source == target or any(scored.record.kind not in ("adapter", "fusion") for scored in group):
            continue
        known = [(scored, first, proof) for scored in group for first, proof in _kept(runs, name, scored, source)]
        if known:
            scores = tuple(first.own.value for _, first, _ in known)
            used = dict.fromkeys(run for scored, first, _ in known for run in (first.run, scored.record.run))
            proofs = ", ".join(dict.fromkeys(proof for *_, proof in known))
            yield Change(name, source, target, scores, scores, tuple(used), proof=proofs)


def _kept(runs: StudyRuns, name: str, scored: Scored, source: str) -> Iterable[tuple[RunRecord, str]]:
    """The runs that answer ``source``, each with the proof that training ``scored`` did not change their answers."""
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


def forgetting_sentences(runs: StudyRuns) -> Iterator[str]:
    """The worst loss that was measured, how many were real, and what cannot forget."""
    measured = [(change, change.comparison) for change in changes(runs) if change.comparison is not None]
    for row in dict.fromkeys(change.row for change, _ in measured):
        own = [(change, comparison) for change, comparison in measured if change.row == row]
        lost = [(change, comparison) for change, comparison in own if comparison.verdict == "worse"]
        title, pairs = capital(runs.study.title(row)), "1 pair" if len(own) == 1 else f"{len(own)} pairs"
        if not lost:
            yield f"{title}: no significant forgetting in {pairs} of tasks."
            continue
        worst, comparison = min(lost, key=lambda pair: pair[0].difference)
        yield (
            f"{title}: training on a second task lowered the score on the first in {len(lost)} of {pairs}, most on"
            f" {worst.source} after {worst.target}: {points(worst.difference)} points ({interval_text(comparison)})."
        )
    proven = list(dict.fromkeys(runs.study.title(change.row) for change in changes(runs) if change.proof))
    if proven:
        verb = "forgets" if len(proven) == 1 else "forget"
        yield (
            f"{capital(listed(proven))} {verb} nothing: after every such run the backbone and the other tasks'"
            " adapters had the same hash as before."
        )
