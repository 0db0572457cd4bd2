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
    """The tasks besides the target that it learned from, in training order if it learned them in turn."""
    target: str
    comparison: Comparison


@cache
def contrasts(runs: StudyRuns) -> list[Contrast]:
    """Every line that builds on another row and on other tasks, and joint training against full fine-tuning."""
    bases = {}
    for line in runs.lines:
        row = runs.study.row(line.row)
        base = "full" if row.kind.is_joint else row.of
        if base is not None and row.joins_tasks:
            bases[line] = Line(base)
    family = {
        (line, target): runs.difference(runs.cell(line, target), runs.cell(base, target), target)
        for line, base in bases.items()
        for target in runs.study.targets
    }
    result = []
    for (line, target), comparison in judge(family, runs.study.looks).items():
        turn = runs.study.turn(line.row, target)
        tasks = turn[: turn.index(target)] if target in turn else runs.study.partners(line.row, target)
        result.append(Contrast(line, bases[line], line.source or ", ".join(tasks), target, comparison))
    return result


def built_on_table(runs: StudyRuns) -> Table | None:
    """One line per contrast; None if no row builds on another."""
    rows = []
    for contrast in contrasts(runs):
        base, group = runs.cell(contrast.base, contrast.target), runs.cell(contrast.line, contrast.target)
        test, both, against = contrast.comparison, runs_of((*group, *base)), runs.title(contrast.base)
        row = {
            "method": line_cell(runs, contrast.line),
            "base method": line_cell(runs, contrast.base),
            "other tasks": text_cell(contrast.sources),
            "target": text_cell(contrast.target),
            "base score": group_cell(base),
            "base steps": _steps_cell(runs, base),
            "score": group_cell(group),
            "steps": _steps_cell(runs, group),
            "difference, points": difference_cell(test.difference, both, test, against),
        }
        rows.append(row)
    unequal = sum(row["base steps"].sort != row["steps"].sort for row in rows)
    marks = marks_note("the base method", rows)
    return Table.of("built-on", rows, unequal=unequal, total=len(rows), marks=marks)


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
    across: dict[tuple[Line, str, str], list[Scored]] = {}
    tests = {}
    for line, task, target in product(map(Line, runs.rows), targets, targets):
        trained = (scored for scored in runs.cell(line, task) if scored.record.task == task != target)
        read = (scored.on(target) for scored in trained if target in scored.record.scores)
        across[line, task, target] = own = [scored for scored in read if scored.score.reading is not None]
        # A model on another task against that task's model, over their common seeds.
        tests[line, task, target] = runs.difference(own, runs.cell(line, target), target)
    verdicts = judge(tests, runs.study.looks)
    rows = []
    for line, task in dict.fromkeys((line, task) for (line, task, _), own in across.items() if own):
        row = {"method": line_cell(runs, line), "trained on": text_cell(task)}
        for target in targets:
            cell = group_cell(runs.cell(line, task), "its own task") if task == target else Cell(MISSING)
            if group := across[line, task, target]:
                cell = group_cell(group, _READINGS[group[0].score.reading or ""])
                cell = judged(cell, verdicts.get((line, task, target)), f"{runs.title(line)} on {target}")
            row[runs.column(target)] = cell
        rows.append(row)
    return Table.of("cross-task", rows, marks=marks_note("the same method trained on that column's task", verdicts))


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
    text: str
    """What was hashed: the backbone, and the adapters of other tasks that the runs hold."""


@cache
def changes(runs: StudyRuns) -> list[Change]:
    """How sequential fine-tuning changed the score on an earlier task, answered with that task's head."""
    tests = {}
    for line in runs.lines:
        row = runs.study.row(line.row)
        sources = row.through or (row.order[:-1] if row.order is not None else (line.source,) if line.source else ())
        for source, (target, group) in product(sources, runs.groups(line).items()):
            trained = [scored for scored in group if scored.record.trained_on == (target,)]
            known = [
                (score.before, score.value, scored)
                for scored in trained
                if (score := scored.record.scores.get(source)) is not None and score.before is not None
            ]
            if known:
                before, after, used = zip(*known, strict=True)
                change = Change(line.row, source, target, before, after, tuple(scored.record.run for scored in used))
                first = [trainer.run if (trainer := runs.trainer(scored.on(source))) else None for scored in used]
                tests[change] = runs.difference_of_pairs([*zip(change.runs, first, strict=True)], source)
    verdicts = judge(tests, runs.study.looks)
    return [replace(change, comparison=verdicts.get(change)) for change in tests]


@cache
def proofs(runs: StudyRuns) -> list[Proof]:
    """Adapter and fusion rows that provably forget nothing.

    Hashes show that they change neither the backbone nor the first task's adapter, so the score stays the same.
    """
    result = []
    for name in runs.rows:
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
        # An adapter that learns a task over another may forget it.
        if pairs and not runs.study.row(name).through:
            others = f", {len(adapters)} adapter{'s' * (len(adapters) > 1)}" if adapters else ""
            result.append(Proof(name, frozenset(pairs), tuple(used), f"backbone {backbones[0][:12]}{others}"))
    return result


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
