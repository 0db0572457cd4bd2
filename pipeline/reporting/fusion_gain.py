"""The gain of a trained fusion over its initial state and over the best adapter that it reads."""

import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

from pipeline.records.run_record import RunRecord
from pipeline.records.studies import Line
from pipeline.reporting.report import (
    Cell,
    Table,
    count,
    count_cell,
    difference_cell,
    group_cell,
    interval_text,
    judge,
    line_cell,
    marks_note,
    points,
    scores_cell,
    text_cell,
)
from pipeline.reporting.runs import Scored, StudyRuns, mean_of
from pipeline.settings.parts import gates_text
from pipeline.settings.study import Study
from pipeline.stats.paired import Comparison


@dataclass(frozen=True)
class Adapter:
    """An adapter of a fusion with a known score on the fusion's target: the target's adapter or a possible anchor."""

    task: str
    run: str
    dev: float
    """Its score on the target's validation rows."""
    value: float | None
    """Its score on the target's test rows; None if unknown."""
    steps: int | None
    own: bool
    """Whether it was trained on the target. Other adapters' predictions on the target are not kept."""


@dataclass(frozen=True)
class FusionGain:
    """A fusion row on one target; lists have a value per seed."""

    line: Line
    target: str
    group: list[Scored]
    starts: list[float | None]
    """Scores before the first step; None if the start was not scored."""
    best: list[Adapter | None]
    """The best of the fusion's adapters with a known score on the target; None if there is none."""
    steps_added: float
    """Steps beyond those of the adapters, mean over seeds."""
    comparison: Comparison | None = None
    """Test against the best adapters; None unless their predictions are kept."""

    @property
    def over_start(self) -> float | None:
        return self._over(self.starts)

    @property
    def over_best(self) -> float | None:
        return self._over(adapter.value if adapter else None for adapter in self.best)

    def _over(self, scores: Iterable[float | None]) -> float | None:
        pairs = zip(self.group, scores, strict=True)
        return mean_of(scored.value - score for scored, score in pairs if score is not None)


@cache
def fusion_gains(runs: StudyRuns) -> list[FusionGain]:
    """Every fusion row on every target, in the study's order."""
    gains, tests = [], {}
    for line, target, group in runs.cells():
        if runs.study.row(line.row).kind.takes != "fusion":
            continue
        records = [scored.record for scored in group]
        curves = [runs.curve(record.run) for record in records]
        starts = [
            next(iter(curve["dev"][curve["epoch"] == 0]), None) if one.score.test is None else one.score.start
            for one, curve in zip(group, curves, strict=True)
        ]
        # Ties go to the target's adapter.
        best = [max(_adapters(runs, one), key=lambda each: (each.dev, each.own), default=None) for one in records]
        gains.append(FusionGain(line, target, group, starts, best, statistics.mean(map(runs.steps, records))))
        # None of other tasks' adapters kept its predictions on the target.
        own = [adapter.run if adapter is not None and adapter.own else None for adapter in best]
        pairs = [(record.run, adapter) for record, adapter in zip(records, own, strict=True)]
        tests[line, target] = runs.difference_of_pairs(pairs, target)
    verdicts = judge(tests, runs.study.looks)
    return [replace(gain, comparison=verdicts.get((gain.line, gain.target))) for gain in gains]


_OWN = {
    "fresh": "new own adapter, ",
    "warm": "warm-started own adapter, ",
    "trained": "own adapter, ",
    "frozen": "own adapter, ",
    "none": "",
}


def _beginning(record: RunRecord) -> str:
    """The fusion before its first step, in words."""
    recipe = record.recipe
    match recipe.fusion.form:
        case "gated":
            own = recipe.gated.own
            gates = sum(own == "none" or source.task != record.task for source in record.sources)
            start = gates_text(record.gates) if record.gates else f"{recipe.gated.start_of(gates):.2g}"
            began = f"{_OWN[own]}gates at {start}"
        case "anchored" if recipe.anchor.score and record.anchor is not None:
            began = record.anchor
        case _:
            began = "mean of all"
    return began if recipe.fusion.head_start else f"{began}, new head"


def _adapters(runs: StudyRuns, fusion: RunRecord) -> Iterable[Adapter]:
    for source in fusion.sources:
        record = runs.ledger.find(source.run)
        steps = runs.steps(record) if record is not None else None
        if source.task == fusion.task and record is not None:
            yield Adapter(source.task, source.run, record.dev, record.own.value, steps, own=True)
        elif (dev := fusion.anchor_candidates.get(source.task)) is not None:
            value = dev if fusion.own.test is None else fusion.anchor_scores.get(source.task)
            yield Adapter(source.task, source.run, dev, value, steps, own=False)


def fusion_gain_table(runs: StudyRuns) -> Table | None:
    """One line per fusion row and target; None in a study without fusion."""
    gains, rows = fusion_gains(runs), []
    for gain in gains:
        best = [adapter for adapter in gain.best if adapter is not None]
        used = tuple(dict.fromkeys(adapter.run for adapter in best))
        kept = [str(scored.record.best_epoch or "start") for scored in gain.group]
        against = (gain.comparison, "the best adapter", "not tested")
        row = {
            "method": line_cell(runs, gain.line),
            "target": text_cell(gain.target),
            "start": _names(_beginning(scored.record) for scored in gain.group),
            "start score": scores_cell([start for start in gain.starts if start is not None]),
            "best adapter": _names(adapter.task for adapter in best),
            "its score": scores_cell([adapter.value for adapter in best if adapter.value is not None], used),
            "its steps": count_cell(mean_of(adapter.steps for adapter in best)),
            "fusion": group_cell(gain.group),
            "steps added": count_cell(gain.steps_added),
            "epoch kept": text_cell("start kept" if set(kept) == {"start"} else ", ".join(kept)),
            "over start, points": difference_cell(gain.over_start),
            "over best adapter, points": difference_cell(gain.over_best, (), *against),
        }
        rows.append(row)
    unscored = runs.titles(gain.line for gain in gains if gain.over_start is None)
    marks = marks_note("the best adapter", [gain for gain in gains if gain.comparison is not None])
    return Table.of("fusion-gain", rows, unscored=unscored, marks=marks)


def _names(names: Iterable[str]) -> Cell:
    """One name, or several with their number of seeds."""
    counts = Counter(names)
    return text_cell(", ".join(f"{name} ({n})" if len(counts) > 1 else name for name, n in counts.most_common()))


def fusion_sentences(runs: StudyRuns) -> Iterator[str]:
    """The gain from training over the best adapter and over the start, in a clause per fusion row with known gains."""
    gains = fusion_gains(runs)
    lines = {line: [gain for gain in gains if gain.line == line] for line in dict.fromkeys(gain.line for gain in gains)}
    best = {line: known for line, own in lines.items() if (known := [g for g in own if g.over_best is not None])}
    if best:
        clauses = "; ".join(f"{runs.title(line)} {_over_best(own, runs.study)}" for line, own in best.items())
        steps = count(max(gain.steps_added for own in best.values() for gain in own))
        yield f"What a fusion added to its best adapter, in up to {steps} more optimiser steps: {clauses}."
    starts = {line: known for line, own in lines.items() if (known := [g for g in own if g.over_start is not None])}
    if starts:
        clauses = "; ".join(f"{runs.title(line)} {_over_start(own)}" for line, own in starts.items())
        yield f"What training added to the start of a fusion: {clauses}."


def _over_best(gains: Sequence[FusionGain], study: Study) -> str:
    added = f"{points(statistics.mean(gain.over_best or 0.0 for gain in gains))} points"
    if len(gains) == 1 and (test := gains[0].comparison) is not None:
        return f"{added} ({interval_text(test, study)}, {test.verdict})"
    verdicts = Counter(gain.comparison.verdict if gain.comparison else "not tested" for gain in gains)
    counts = ", ".join(f"{verdict} on {n}" if len(gains) > 1 else verdict for verdict, n in verdicts.most_common())
    return f"{added}{_on(gains)} ({counts})"


def _over_start(gains: Sequence[FusionGain]) -> str:
    epochs = [scored.record.best_epoch for gain in gains for scored in gain.group]
    kept, seeds = epochs.count(0), len(epochs)
    if kept == seeds:
        return f"nothing{_on(gains)}, the start was kept in every run"
    added = points(statistics.mean(gain.over_start or 0.0 for gain in gains), sign=False)
    return f"{added} points{_on(gains)}" + (f" (the start was kept in {kept} of {seeds} runs)" if kept else "")


def _on(gains: Sequence[FusionGain]) -> str:
    return f" on the mean of {len(gains)} targets" if len(gains) > 1 else f" on {gains[0].target}"
