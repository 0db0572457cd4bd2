"""What tasks give to each other: rows beside those they are built on, models on other tasks, forgetting."""

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product

from pipeline.records.run_record import RunRecord
from pipeline.records.studies import Line
from pipeline.reporting.report import (
    MISSING,
    MOST_NAMED,
    Cell,
    Table,
    capital,
    count_cell,
    difference_cell,
    group_cell,
    interval_text,
    judge,
    judged,
    line_cell,
    listed,
    marks_note,
    points,
    scores_cell,
    text_cell,
)
from pipeline.reporting.runs import Scored, StudyRuns, mean_of, runs_of
from pipeline.settings.kinds import KINDS
from pipeline.stats.paired import Comparison


@dataclass(frozen=True)
class Contrast:
    """A line that learned from ``sources`` and the line that it builds on, on one target over their common seeds."""

    line: Line
    base: Line
    sources: str
    target: str
    comparison: Comparison


@cache
def contrasts(runs: StudyRuns) -> list[Contrast]:
    """Every line that builds on another row and on other tasks, and joint training against full fine-tuning."""
    bases = {}
    for line in runs.lines:
        row = runs.study.row(line.row)
        base = "full" if row.kind.is_joint else row.of
        if base is not None and row.kind.joins(row):
            bases[line] = Line(base)
    family = {
        (line, target): runs.difference(runs.cell(line, target), runs.cell(base, target), target)
        for line, base in bases.items()
        for target in runs.study.targets
    }
    return [
        Contrast(line, bases[line], _sources(runs, line, target), target, comparison)
        for (line, target), comparison in judge(family, runs.study.looks).items()
    ]


def _sources(runs: StudyRuns, line: Line, target: str) -> str:
    """The tasks besides the target that a line learned from, in training order if it learned them in turn."""
    turn = runs.study.turn(line.row, target)
    tasks = turn[: turn.index(target)] if target in turn else runs.study.partners(line.row, target)
    return line.source or ", ".join(tasks)


def built_on_table(runs: StudyRuns) -> Table | None:
    """One line per contrast; None if no row builds on another."""
    all_contrasts = contrasts(runs)
    rows = [_contrast_row(runs, contrast) for contrast in all_contrasts]
    unequal = sum(row["base steps"].sort != row["steps"].sort for row in rows)
    marks = marks_note("the base method", all_contrasts)
    return Table.of("built-on", rows, unequal=unequal, total=len(rows), marks=marks)


def _contrast_row(runs: StudyRuns, contrast: Contrast) -> dict[str, Cell]:
    base, group = runs.cell(contrast.base, contrast.target), runs.cell(contrast.line, contrast.target)
    both = runs_of((*group, *base))
    return {
        "method": line_cell(runs, contrast.line),
        "base method": line_cell(runs, contrast.base),
        "other tasks": text_cell(contrast.sources),
        "target": text_cell(contrast.target),
        "base score": group_cell(base),
        "base steps": _steps_cell(runs, base),
        "score": group_cell(group),
        "steps": _steps_cell(runs, group),
        "difference, points": difference_cell(
            contrast.comparison.difference, both, contrast.comparison, runs.title(contrast.base)
        ),
    }


def _steps_cell(runs: StudyRuns, group: Sequence[Scored]) -> Cell:
    """Optimiser steps on the target's rows, mean over seeds; empty if unknown for any run."""
    steps = [runs.steps_on(scored.record, scored.entry.target) for scored in group]
    return count_cell(None if None in steps else mean_of(steps))


_READINGS = {
    "same": "read as it is",
    "probability": "its probability of the class of similar texts, rescaled to the range of the score",
    "middle": "its score, the class of similar texts above the middle of its range",
    "cosine": "the cosine of its sentence vectors, by which the model scores that task",
}


def cross_task_table(runs: StudyRuns) -> Table | None:
    """One line per row and training task; None if the study does not ask for it, or no other task was scored."""
    if not runs.study.cross_task:
        return None
    targets = runs.study.targets
    across = {
        (line, task, target): _across(runs, line, task, target)
        for line in map(Line, runs.rows)
        for task in targets
        for target in targets
    }
    # A model on another task against that task's model, over their common seeds.
    verdicts = judge(
        {key: runs.difference(own, runs.cell(key[0], key[2]), key[2]) for key, own in across.items()}, runs.study.looks
    )
    rows = []
    for line, task in dict.fromkeys((line, task) for (line, task, _), own in across.items() if own):
        scores = {runs.column(t): _cross_cell(runs, line, task, t, verdicts.get((line, task, t))) for t in targets}
        rows.append({"method": line_cell(runs, line), "trained on": text_cell(task), **scores})
    return Table.of("cross-task", rows, marks=marks_note("the same method trained on that column's task", verdicts))


def _across(runs: StudyRuns, line: Line, task: str, target: str) -> list[Scored]:
    """The runs of a line trained on ``task`` that were scored on ``target``, by seed."""
    trained = (scored for scored in runs.cell(line, task) if scored.record.task == task != target)
    read = (scored.on(target) for scored in trained if target in scored.record.scores)
    return [scored for scored in read if scored.score.reading is not None]


def _cross_cell(runs: StudyRuns, line: Line, task: str, target: str, comparison: Comparison | None) -> Cell:
    if task == target:
        return group_cell(runs.cell(line, task), "its own task")
    group = _across(runs, line, task, target)
    if not group:
        return Cell(MISSING)
    reading = group[0].score.reading
    assert reading is not None
    return judged(group_cell(group, _READINGS[reading]), comparison, f"{runs.title(line)} on {target}")


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


@cache
def changes(runs: StudyRuns) -> list[Change]:
    """How sequential fine-tuning changed the score on an earlier task, answered with that task's head."""
    measured = [change for line in runs.lines for change in _measured(runs, line)]
    pairs = {c: [(run, _learned(runs, run, c.source)) for run in c.runs] for c in measured}
    verdicts = judge({c: runs.difference_of_pairs(own, c.source) for c, own in pairs.items()}, runs.study.looks)
    return [replace(change, comparison=verdicts.get(change)) for change in measured]


@cache
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
        shown = proven if len(proven) <= MOST_NAMED else [proven[0], f"{len(proven) - 1} other methods"]
        verb = "forgets" if len(proven) == 1 else "forget"
        yield (
            f"{capital(listed(shown))} {verb} nothing: after every such run the backbone and the other tasks'"
            " adapters had the same hash as before."
        )
