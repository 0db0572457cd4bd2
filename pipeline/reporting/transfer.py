"""What tasks give to each other: rows beside those they are built on, models on other tasks, forgetting, fusions."""

import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby, product
from operator import attrgetter
from typing import NamedTuple

from pipeline.records.run_record import RunRecord
from pipeline.records.studies import Line
from pipeline.reporting import report
from pipeline.reporting.report import Cell, Table
from pipeline.reporting.runs import Scored, StudyRuns, mean_of, runs_of
from pipeline.settings.kinds import KINDS
from pipeline.settings.parts import gates_text
from pipeline.settings.study import Study
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
    tests = {}
    for line, target in product(runs.lines, runs.study.targets):
        row = runs.study.row(line.row)
        name = "full" if row.kind.is_joint else row.of
        if name is not None and row.joins_tasks and runs.study.row(name).backbone == row.backbone:
            base = Line(name)
            tests[line, base, target] = runs.difference(runs.cell(line, target), runs.cell(base, target), target)
    result = []
    for (line, base, target), comparison in report.judge(tests, runs.study.looks).items():
        tasks = runs.study.turn(line.row, target) or runs.study.partners(line.row, target)
        others = line.source or ", ".join(task for task in tasks if task != target)
        result.append(Contrast(line, base, others, target, comparison))
    return result


def built_on_table(runs: StudyRuns) -> Table | None:
    """One line per contrast; None if no row builds on another."""
    rows = []
    for contrast in contrasts(runs):
        base, group = runs.cell(contrast.base, contrast.target), runs.cell(contrast.line, contrast.target)
        test, both, against = contrast.comparison, runs_of((*group, *base)), runs.title(contrast.base)
        row = {
            "method": report.line_cell(runs, contrast.line),
            "base method": report.line_cell(runs, contrast.base),
            "other tasks": report.text_cell(contrast.sources),
            "target": report.text_cell(contrast.target),
            "base score": report.group_cell(base),
            "base steps": _steps_cell(runs, base),
            "score": report.group_cell(group),
            "steps": _steps_cell(runs, group),
            "difference, points": report.difference_cell(test.difference, both, test, against),
        }
        rows.append(row)
    unequal = sum(row["base steps"].sort != row["steps"].sort for row in rows)
    marks = report.marks_note("the base method", rows)
    return Table.of("built-on", rows, unequal=unequal, total=len(rows), marks=marks)


def _steps_cell(runs: StudyRuns, group: Sequence[Scored]) -> Cell:
    """Optimiser steps on the target's rows, mean over seeds; empty if unknown for any run."""
    steps = [runs.steps_on(scored.record, scored.entry.target) for scored in group]
    return report.count_cell(None if None in steps else mean_of(steps))


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
    verdicts = report.judge(tests, runs.study.looks)
    rows = []
    for line, task in dict.fromkeys((line, task) for (line, task, _), own in across.items() if own):
        row = {"method": report.line_cell(runs, line), "trained on": report.text_cell(task)}
        for target in targets:
            cell = report.group_cell(runs.cell(line, task), "its own task") if task == target else Cell(report.MISSING)
            if group := across[line, task, target]:
                cell = report.group_cell(group, _READINGS[group[0].score.reading or ""])
                cell = report.judged(cell, verdicts.get((line, task, target)), f"{runs.title(line)} on {target}")
            row[runs.column(target)] = cell
        rows.append(row)
    marks = report.marks_note("the same method trained on that column's task", verdicts)
    return Table.of("cross-task", rows, marks=marks)


@dataclass(frozen=True)
class Change:
    """The score on ``source`` before and after training on ``target``, over the seeds that have both.

    Nothing is measured where hashes taken after training prove that a row changed nothing that answers earlier tasks.
    """

    row: str
    source: str
    target: str
    runs: tuple[str, ...]
    before: tuple[float, ...] = ()
    after: tuple[float, ...] = ()
    comparison: Comparison | None = None
    pairs: frozenset[tuple[str, str]] = frozenset()
    """All proven pairs of an earlier task and the task trained on next; ``source`` and ``target`` then sum them up."""
    proof: str = ""
    """What was hashed: the backbone, and the adapters of other tasks that the runs hold."""

    @property
    def difference(self) -> float:
        return 0.0 if self.proof else statistics.mean(self.after) - statistics.mean(self.before)


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
                change = Change(line.row, source, target, tuple(scored.record.run for scored in used), before, after)
                first = [trainer.run if (trainer := runs.trainer(scored.on(source))) else None for scored in used]
                tests[change] = runs.difference_of_pairs([*zip(change.runs, first, strict=True)], source)
    verdicts = report.judge(tests, runs.study.looks)
    return [replace(change, comparison=verdicts.get(change)) for change in tests]


@cache
def proofs(runs: StudyRuns) -> list[Change]:
    """Adapter and fusion rows that provably forget nothing, with all their pairs of tasks as one.

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
            sides = (sorted({*side}) for side in zip(*pairs, strict=True))
            earlier, later = (side[0] if len(side) == 1 else f"{len(side)} tasks" for side in sides)
            proof = f"backbone {backbones[0][:12]}{others}"
            result.append(Change(name, earlier, later, tuple(used), pairs=frozenset(pairs), proof=proof))
    return result


def forgetting_table(runs: StudyRuns) -> Table | None:
    """One line per measured pair of tasks and per proven row; None if there is neither."""
    rows = []
    for change in (*changes(runs), *proofs(runs)):
        measured = change.runs if change.before else ()
        row = {
            "method": report.line_cell(runs, Line(change.row)),
            "learned first": report.text_cell(change.source),
            "then": report.text_cell(change.target),
            "pairs": report.count_cell(len(change.pairs) or 1),
            "before": report.scores_cell(change.before, measured),
            "after": report.scores_cell(change.after, measured),
            "change, points": report.difference_cell(change.difference, change.runs, change.comparison, "before"),
            "unchanged (sha256)": report.text_cell(change.proof),
        }
        rows.append(row)
    marks = report.marks_note("the score before", [change for change in changes(runs) if change.comparison is not None])
    return Table.of("forgetting", rows, marks=marks)


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
        title, pairs = report.capital(runs.study.title(row)), "1 pair" if len(own) == 1 else f"{len(own)} pairs"
        if not lost:
            yield f"{title}: no significant forgetting in {pairs} of tasks."
            continue
        worst, comparison = min(lost, key=lambda pair: pair[0].difference)
        interval = report.interval_text(comparison, runs.study)
        yield (
            f"{title}: training on later tasks lowered the score on an earlier one in {len(lost)} of {pairs}, most on"
            f" {worst.source} after {worst.target}: {report.points(worst.difference)} points ({interval})."
        )
    proven = [runs.study.title(proof.row) for proof in proofs(runs)]
    if proven:
        shown = proven if len(proven) <= report.MOST_NAMED else [proven[0], f"{len(proven) - 1} other methods"]
        verb = "forgets" if len(proven) == 1 else "forget"
        yield (
            f"{report.capital(report.listed(shown))} {verb} nothing: after every such run the backbone and the other"
            " tasks' adapters had the same hash as before."
        )


class Adapter(NamedTuple):
    """An adapter of a fusion with a known score on the fusion's target: the target's adapter or a possible anchor."""

    task: str
    run: str
    steps: int | None
    dev: float
    """Its score on the target's validation rows."""
    value: float | None
    """Its score on the target's test rows; None if unknown."""
    own: bool
    """Whether it was trained on the target. Other adapters' predictions on the target are not kept."""


@dataclass(frozen=True)
class FusionGain:
    """A fusion row on one target; lists have a value per seed for which it is known."""

    line: Line
    target: str
    group: list[Scored]
    starts: list[float]
    """Scores before the first step."""
    best: list[Adapter]
    """The best of the fusion's adapters with a known score on the target."""
    over_start: float | None
    """Mean gain over ``starts``."""
    over_best: float | None
    """Mean gain over the known scores of ``best``."""
    steps_added: float
    """Optimiser steps of the fusion itself, without those of its adapters; mean over seeds."""
    comparison: Comparison | None = None
    """Test against the best adapters; None unless their predictions are kept."""


@cache
def fusion_gains(runs: StudyRuns) -> list[FusionGain]:
    """Every fusion row on every target, in the study's order, but not where nothing trained."""
    gains, tests = [], {}
    for line, target, group in runs.cells():
        records = [scored.record for scored in group]
        if runs.study.row(line.row).kind.takes != "fusion" or not any(one.cost.trainable_parameters for one in records):
            continue
        curves = [runs.curve(record.run) for record in records]
        starts = [
            next(iter(curve["dev"][curve["epoch"] == 0]), None) if one.score.test is None else one.score.start
            for one, curve in zip(group, curves, strict=True)
        ]
        # Ties go to the target's adapter.
        best = [max(_adapters(runs, one), key=lambda each: (each.dev, each.own), default=None) for one in records]
        known = [start for start in starts if start is not None], [adapter for adapter in best if adapter is not None]
        gained = _gain(group, starts), _gain(group, [adapter and adapter.value for adapter in best])
        gains.append(FusionGain(line, target, group, *known, *gained, statistics.mean(map(runs.steps, records))))
        # None of other tasks' adapters kept its predictions on the target.
        own = (adapter.run if adapter is not None and adapter.own else None for adapter in best)
        pairs = [(record.run, adapter) for record, adapter in zip(records, own, strict=True)]
        tests[line, target] = runs.difference_of_pairs(pairs, target)
    verdicts = report.judge(tests, runs.study.looks)
    return [replace(gain, comparison=verdicts.get((gain.line, gain.target))) for gain in gains]


def _gain(group: Sequence[Scored], scores: Sequence[float | None]) -> float | None:
    pairs = zip(group, scores, strict=True)
    return mean_of(scored.value - score for scored, score in pairs if score is not None)


def _adapters(runs: StudyRuns, fusion: RunRecord) -> Iterable[Adapter]:
    for source in fusion.sources:
        record, candidate = runs.ledger.find(source.run), fusion.anchor_candidates.get(source.task)
        steps = runs.steps(record) if record is not None else None
        if source.task == fusion.task and record is not None:
            yield Adapter(source.task, source.run, steps, record.dev, record.own.value, own=True)
        elif candidate is not None:
            value = candidate if fusion.own.test is None else fusion.anchor_scores.get(source.task)
            yield Adapter(source.task, source.run, steps, candidate, value, own=False)


_OWN = {"fresh": "new own adapter, ", "warm": "warm-started own adapter, ", "none": ""}


def _beginning(record: RunRecord) -> str:
    """The fusion before its first step, in words."""
    recipe = record.recipe
    match recipe.fusion.form:
        case "gated":
            own = recipe.gated.own
            gates = sum(own == "none" or source.task != record.task for source in record.sources)
            start = gates_text(record.gates) if record.gates else f"{recipe.gated.start_of(gates):.2g}"
            began = f"{_OWN.get(own, 'own adapter, ')}gates at {start}"
        case "anchored" if recipe.anchor.score and record.anchor is not None:
            began = record.anchor
        case _:
            began = "mean of all"
    return began if recipe.fusion.head_start else f"{began}, new head"


def fusion_gain_table(runs: StudyRuns) -> Table | None:
    """One line per fusion row and target; None in a study without fusions that trained."""
    gains, rows = fusion_gains(runs), []
    for gain in gains:
        used = tuple(dict.fromkeys(adapter.run for adapter in gain.best))
        kept = [str(scored.record.best_epoch or "start") for scored in gain.group]
        scores = [adapter.value for adapter in gain.best if adapter.value is not None]
        against = (gain.comparison, "the best adapter", "not tested")
        row = {
            "method": report.line_cell(runs, gain.line),
            "target": report.text_cell(gain.target),
            "start": report.text_cell(report.counted(_beginning(scored.record) for scored in gain.group)),
            "start score": report.scores_cell(gain.starts),
            "best adapter": report.text_cell(report.counted(adapter.task for adapter in gain.best)),
            "its score": report.scores_cell(scores, used),
            "its steps": report.count_cell(mean_of(adapter.steps for adapter in gain.best)),
            "fusion": report.group_cell(gain.group),
            "steps added": report.count_cell(gain.steps_added),
            "epoch kept": report.text_cell("start kept" if set(kept) == {"start"} else ", ".join(kept)),
            "over start, points": report.difference_cell(gain.over_start),
            "over best adapter, points": report.difference_cell(gain.over_best, (), *against),
        }
        rows.append(row)
    unscored = runs.titles(gain.line for gain in gains if gain.over_start is None)
    marks = report.marks_note("the best adapter", [gain for gain in gains if gain.comparison is not None])
    return Table.of("fusion-gain", rows, unscored=unscored, marks=marks)


def fusion_sentences(runs: StudyRuns) -> Iterator[str]:
    """The gain from training over the best adapter and over the start, in a clause per fusion row with known gains."""
    gains, line_of = fusion_gains(runs), attrgetter("line")
    best, starts = ([g for g in gains if g.over_best is not None], [g for g in gains if g.over_start is not None])
    if best:
        clauses = (f"{runs.title(line)} {_over_best([*own], runs.study)}" for line, own in groupby(best, line_of))
        steps = report.count(max(gain.steps_added for gain in best))
        yield f"What a fusion added to its best adapter, in up to {steps} more optimiser steps: {'; '.join(clauses)}."
    if starts:
        clauses = (f"{runs.title(line)} {_over_start([*own])}" for line, own in groupby(starts, line_of))
        yield f"What training added to the start of a fusion: {'; '.join(clauses)}."


def _over_best(gains: Sequence[FusionGain], study: Study) -> str:
    added = f"{report.points(statistics.mean(gain.over_best or 0.0 for gain in gains))} points"
    if len(gains) == 1 and (test := gains[0].comparison) is not None:
        return f"{added} ({report.interval_text(test, study)}, {test.verdict})"
    verdicts = Counter(gain.comparison.verdict if gain.comparison else "not tested" for gain in gains)
    counts = ", ".join(f"{verdict} on {n}" if len(gains) > 1 else verdict for verdict, n in verdicts.most_common())
    return f"{added}{_on(gains)} ({counts})"


def _over_start(gains: Sequence[FusionGain]) -> str:
    epochs = [scored.record.best_epoch for gain in gains for scored in gain.group]
    kept, seeds = epochs.count(0), len(epochs)
    if kept == seeds:
        return f"nothing{_on(gains)}, the start was kept in every run"
    added = report.points(statistics.mean(gain.over_start or 0.0 for gain in gains), sign=False)
    return f"{added} points{_on(gains)}" + (f" (the start was kept in {kept} of {seeds} runs)" if kept else "")


def _on(gains: Sequence[FusionGain]) -> str:
    return f" on the mean of {len(gains)} targets" if len(gains) > 1 else f" on {gains[0].target}"
