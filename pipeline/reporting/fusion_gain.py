"""What training a fusion gained over its initial state and over the best adapter that it reads."""

import statistics
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from pipeline.records.ledger import RunRecord
from pipeline.reporting.cells import count_cell, difference_cell, group_cell, line_cell, mean_of, scores_cell, text_cell
from pipeline.reporting.entries import Line
from pipeline.reporting.report import Cell, Table
from pipeline.reporting.runs import Scored, StudyRuns, once
from pipeline.reporting.text import listed
from pipeline.reporting.verdicts import judge, short_test_note
from pipeline.stats.paired import Comparison, Resampled


@dataclass(frozen=True)
class Adapter:
    """An adapter that a fusion reads and that can answer the fusion's target."""

    task: str
    run: str
    dev: float
    """Its score on the target."""
    steps: int | None
    own: bool
    """Whether the target is its task. Predictions of others on the target are not kept."""


@dataclass(frozen=True)
class Seed:
    """A fusion of one seed, what it was initialised to, and the best of its adapters on the target."""

    scored: Scored
    began: str
    start: float | None
    """The score before any step; None where the start was not scored."""
    best: Adapter | None
    steps: int


@dataclass(frozen=True)
class FusionGain:
    """A row of fusion on one target over its seeds."""

    line: Line
    target: str
    seeds: tuple[Seed, ...]
    comparison: Comparison | None = None
    """Against the best adapters, where their predictions are kept."""

    @property
    def epochs(self) -> list[int]:
        """The epochs that were kept; 0 is the start."""
        return [seed.scored.record.best_epoch for seed in self.seeds]

    @property
    def best(self) -> list[Adapter]:
        return [seed.best for seed in self.seeds if seed.best is not None]

    @property
    def over_start(self) -> float | None:
        return mean_of(seed.scored.value - seed.start for seed in self.seeds if seed.start is not None)

    @property
    def over_best(self) -> float | None:
        return mean_of(seed.scored.value - seed.best.dev for seed in self.seeds if seed.best is not None)

    @property
    def steps_added(self) -> float:
        """On top of those of the adapters; mean over seeds."""
        return statistics.mean(seed.steps for seed in self.seeds)

    @property
    def starts_kept(self) -> int:
        return self.epochs.count(0)


@once
def fusion_gains(runs: StudyRuns) -> list[FusionGain]:
    """Every row of fusion on every target, in the order of the study."""
    gains = [
        FusionGain(line, target, tuple(_seed(runs, scored) for scored in group))
        for line, target, group in runs.cells()
        if runs.study.row(line.row).method == "fusion"
    ]
    verdicts = judge({number: _resampled(runs, gain) for number, gain in enumerate(gains)})
    return [replace(gain, comparison=verdicts.get(number)) for number, gain in enumerate(gains)]


def _seed(runs: StudyRuns, scored: Scored) -> Seed:
    curve = runs.curve(scored.record.run)
    start = curve.loc[curve["epoch"] == 0, "dev"]
    return Seed(
        scored,
        began=_beginning(scored.record),
        start=None if start.empty else float(start.iloc[0]),
        # Of equal ones the target's own.
        best=max(_adapters(runs, scored.record), key=lambda adapter: (adapter.dev, adapter.own), default=None),
        steps=runs.steps(scored.record),
    )


def _beginning(record: RunRecord) -> str:
    if record.recipe.fusion.form == "standard" or record.anchor is None or not record.recipe.anchor.score:
        began = "mean of all"
    else:
        began = record.anchor
    return began if record.recipe.fusion.head_start else f"{began}, new head"


def _adapters(runs: StudyRuns, fusion: RunRecord) -> Iterable[Adapter]:
    for source in fusion.sources:
        record = runs.ledger.find(source.run)
        steps = runs.steps(record) if record is not None else None
        if source.task == fusion.task and record is not None:
            yield Adapter(source.task, source.run, record.dev, steps, own=True)
        elif source.task in fusion.anchor_candidates:
            yield Adapter(source.task, source.run, fusion.anchor_candidates[source.task], steps, own=False)


def _resampled(runs: StudyRuns, gain: FusionGain) -> Resampled | None:
    """The fusions against their best adapters; None unless all of these answered the target before."""
    pairs = [(seed.scored.record.run, seed.best.run) for seed in gain.seeds if seed.best is not None and seed.best.own]
    if len(pairs) < len(gain.seeds):
        return None
    return runs.resampled_pairs(pairs, gain.target, seed=runs.study.targets.index(gain.target))


def fusion_gain_table(runs: StudyRuns) -> Table | None:
    """One line a row of fusion and target; None in a study without fusion."""
    gains = fusion_gains(runs)
    if not gains:
        return None
    unscored = list(dict.fromkeys(runs.title(gain.line) for gain in gains if gain.over_start is None))
    notes = (
        "Start: the fusion before its first step, which is nearly the adapter named with that adapter's head. It"
        " competes with the epochs for the best dev score, so a fusion never ends below it, and a test of the gain over"
        " it would mean nothing.",
        *([f"{listed(unscored)}: not scored before training, so there is no gain over the start."] if unscored else []),
        "Best adapter: the best on dev of those that the fusion reads and that can answer the target: the target's own,"
        " and any of a task with the same labels. Not tested where the latter is best, since its predictions on the"
        " target are not kept. The fusion trained for the steps added on top of the adapter's, which was not trained"
        " any longer.",
        *short_test_note("the best adapter", [gain for gain in gains if gain.comparison is not None]),
    )
    columns: dict[str, Callable[[FusionGain], Cell]] = {
        "method": lambda gain: line_cell(runs, gain.line),
        "target": lambda gain: text_cell(gain.target),
        "start": lambda gain: _names(seed.began for seed in gain.seeds),
        "start score": lambda gain: scores_cell([seed.start for seed in gain.seeds if seed.start is not None]),
        "best adapter": lambda gain: _names(adapter.task for adapter in gain.best),
        "its score": lambda gain: scores_cell(
            [a.dev for a in gain.best], tuple(dict.fromkeys(a.run for a in gain.best))
        ),
        "its steps": lambda gain: count_cell(mean_of(adapter.steps for adapter in gain.best)),
        "fusion": lambda gain: group_cell([seed.scored for seed in gain.seeds]),
        "steps added": lambda gain: count_cell(gain.steps_added),
        "epoch kept": lambda gain: text_cell(_kept(gain)),
        "over start, points": lambda gain: difference_cell(gain.over_start),
        "over best adapter, points": lambda gain: difference_cell(
            gain.over_best, (), gain.comparison, "the best adapter", "not tested"
        ),
    }
    return Table.of("fusion-gain", "What fusion training added", gains, columns, notes)


def _names(names: Iterable[str]) -> Cell:
    """One name, or each with the number of seeds it holds for."""
    counts = Counter(names)
    return text_cell(", ".join(f"{name} ({n})" if len(counts) > 1 else name for name, n in counts.most_common()))


def _kept(gain: FusionGain) -> str:
    if gain.starts_kept == len(gain.seeds):
        return "start kept"
    return ", ".join(str(epoch) if epoch else "start" for epoch in gain.epochs)
