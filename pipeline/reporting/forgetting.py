"""Forgetting: how well a model still answers an earlier task after training on later ones."""

import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import product

from pipeline.records.run_record import RunRecord
from pipeline.records.studies import Line
from pipeline.reporting.cells import count_cell, difference_cell, judge, line_cell, scores_cell, text_cell
from pipeline.reporting.report import Cell, Table
from pipeline.reporting.runs import Scored, StudyRuns, once
from pipeline.reporting.text import MISSING, MOST_NAMED, capital, interval_text, listed, marks_note, points
from pipeline.settings.kinds import KINDS
from pipeline.stats.paired import Comparison


@dataclass(frozen=True)
class Change:
    """The score on ``source`` before and after training on ``target``, over the seeds that have both."""

    row: str
    source: str
    target: str
    before: tuple[float, ...]
    after: tuple[float, ...]
    runs: tuple[str, ...]
    comparison: Comparison | None = None

    @property
    def difference(self) -> float:
        return statistics.mean(self.after) - statistics.mean(self.before)


@dataclass(frozen=True)
class Proof:
    """Proof by hashes taken after training that a row changed nothing that answers an earlier task."""

    row: str
    pairs: frozenset[tuple[str, str]]
    """Pairs of an earlier task and the task trained on next."""
    runs: tuple[str, ...]
    backbone: str
    adapters: int
    """Number of hashed adapters of other tasks; 0 if the runs hold none."""

    @property
    def text(self) -> str:
        adapters = f", {self.adapters} adapter{'s' * (self.adapters > 1)}" if self.adapters else ""
        return f"backbone {self.backbone[:12]}{adapters}"


@once
def changes(runs: StudyRuns) -> list[Change]:
    """How sequential fine-tuning changed the score on an earlier task, answered with that task's head."""
    measured = [change for line in runs.lines for change in _measured(runs, line)]
    pairs = {c: [(run, _learned(runs, run, c.source)) for run in c.runs] for c in measured}
    verdicts = judge({c: runs.difference_of_pairs(own, c.source) for c, own in pairs.items()}, runs.study.looks)
    return [replace(change, comparison=verdicts.get(change)) for change in measured]


@once
def proofs(runs: StudyRuns) -> list[Proof]:
    """Adapter and fusion rows that provably forget nothing.

    Hashes show that they change neither the backbone nor the first task's adapter, so the score stays the same.
    """
    return [proof for name in runs.rows if (proof := _proven(runs, name)) is not None]


def forgetting_table(runs: StudyRuns) -> Table | None:
    """One line per measured pair of tasks and per proven row; None if there is neither."""
    measured = [
        {
            "method": line_cell(runs, Line(change.row)),
            "learned first": text_cell(change.source),
            "then": text_cell(change.target),
            "pairs": count_cell(1),
            "before": scores_cell(change.before, change.runs),
            "after": scores_cell(change.after, change.runs),
            "change, points": difference_cell(change.difference, change.runs, change.comparison, "before"),
            "unchanged (sha256)": text_cell(""),
        }
        for change in changes(runs)
    ]
    proven = [
        {
            "method": line_cell(runs, Line(proof.row)),
            "learned first": text_cell(_tasks([first for first, _ in proof.pairs])),
            "then": text_cell(_tasks([then for _, then in proof.pairs])),
            "pairs": count_cell(len(proof.pairs)),
            "before": Cell(MISSING),
            "after": Cell(MISSING),
            "change, points": difference_cell(0.0, proof.runs),
            "unchanged (sha256)": text_cell(proof.text),
        }
        for proof in proofs(runs)
    ]
    marks = marks_note("the score before", [change for change in changes(runs) if change.comparison is not None])
    return Table.of("forgetting", measured + proven, marks=marks)


def _tasks(names: Iterable[str]) -> str:
    names = sorted(set(names))
    return names[0] if len(names) == 1 else f"{len(names)} tasks"


def _measured(runs: StudyRuns, line: Line) -> Iterable[Change]:
    """Changes in a sequentially fine-tuned line's scores on the tasks before its last one."""
    row = runs.study.row(line.row)
    sources = row.through or (row.order[:-1] if row.order is not None else (line.source,) if line.source else ())
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
    """The ancestor of ``run`` that was trained on ``task``; None if it no longer exists."""
    record = runs.ledger.find(run)
    while record is not None and record.task != task:
        record = runs.ledger.find(record.sources[0].run) if record.sources else None
    return record.run if record is not None else None


def _proven(runs: StudyRuns, name: str) -> Proof | None:
    if runs.study.row(name).through:  # one adapter learns a task over another, which it may forget
        return None
    pairs, used, adapters, backbones = set[tuple[str, str]](), dict[str, None](), set[str](), list[str]()
    for (target, group), source in product(runs.groups(Line(name)).items(), runs.study.all_tasks):
        kinds = [KINDS[scored.record.kind] for scored in group]
        if source == target or not all(kind.is_one_adapter or kind.takes == "fusion" for kind in kinds):
            continue
        for scored in group:
            for first, digest in _kept(runs, name, scored, source):
                pairs.add((source, target))
                used |= dict.fromkeys((first.run, scored.record.run))
                adapters |= {digest} - {""}
                backbones.append(scored.record.unchanged["backbone"])
    return Proof(name, frozenset(pairs), tuple(used), backbones[0], len(adapters)) if pairs else None


def _kept(runs: StudyRuns, name: str, scored: Scored, source: str) -> Iterable[tuple[RunRecord, str]]:
    """The runs that answer ``source``, if training ``scored`` provably left their answers unchanged.

    Yields pairs of a record and its adapter's hash, which is empty if ``scored`` does not hold that adapter.
    """
    record = scored.record
    backbone = record.unchanged.get("backbone")
    if backbone is None or backbone != record.backbone_weights:
        return
    if KINDS[record.kind].is_one_adapter:
        # This run shares only the backbone with another task's adapter.
        for other in runs.cell(Line(name), source):
            if other.entry.seed == scored.entry.seed:
                yield other.record, ""
        return
    for used in record.sources:
        first, digest = runs.ledger.find(used.run), record.unchanged.get(used.task)
        if used.task == source and first is not None and digest is not None:
            yield first, digest


def forgetting_sentences(runs: StudyRuns) -> Iterator[str]:
    """The largest measured loss, how many losses were significant, and the rows that cannot forget."""
    measured = [(change, change.comparison) for change in changes(runs) if change.comparison is not None]
    for row in dict.fromkeys(change.row for change, _ in measured):
        own = [(change, comparison) for change, comparison in measured if change.row == row]
        lost = [(change, comparison) for change, comparison in own if comparison.verdict == "worse"]
        title, pairs = capital(runs.study.title(row)), "1 pair" if len(own) == 1 else f"{len(own)} pairs"
        if not lost:
            yield f"{title}: no significant forgetting in {pairs} of tasks."
            continue
        worst, comparison = min(lost, key=lambda pair: pair[0].difference)
        interval = interval_text(comparison, runs.study)
        yield (
            f"{title}: training on later tasks lowered the score on an earlier one in {len(lost)} of {pairs}, most on"
            f" {worst.source} after {worst.target}: {points(worst.difference)} points ({interval})."
        )
    proven = [runs.study.title(proof.row) for proof in proofs(runs)]
    if proven:
        shown = proven if len(proven) <= MOST_NAMED else [proven[0], f"{len(proven) - 1} other rows"]
        verb = "forgets" if len(proven) == 1 else "forget"
        yield (
            f"{capital(listed(shown))} {verb} nothing: after every such run the backbone and the other tasks'"
            " adapters had the same hash as before."
        )
