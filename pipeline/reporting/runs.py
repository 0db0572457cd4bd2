"""The finished runs of a study, found by row, target and seed."""

import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

import numpy as np
import pandas as pd

from pipeline.records.ledger import Ledger
from pipeline.records.run_record import RunRecord, TaskScore
from pipeline.records.studies import Entry, Line, StudyResult
from pipeline.settings.kinds import KINDS
from pipeline.settings.recipe import MIN_STEPS, Recipe
from pipeline.stats.metrics import Metric
from pipeline.stats.paired import Difference, Shared, mean_difference, paired_difference
from pipeline.system.errors import PipelineError


@dataclass(frozen=True)
class AttentionMap:
    """The attention of a model's layers over one input."""

    run: str
    title: str
    text: str
    tokens: tuple[str, ...]
    layers: Mapping[int, np.ndarray]
    """By layer, counted from 1: (T, S), a row per token; S is T, or more if a prefix precedes the tokens."""
    own_layers: int | None = None
    """Number of top layers that belong to the task alone in a model whose tasks share the rest; None: tasks share no
    layers, or all."""

    def keys(self, layer: int) -> list[str]:
        """Labels of the attended positions: those of the prefix, then the tokens."""
        more = self.layers[layer].shape[1] - len(self.tokens)
        return [*(f"prefix {place}" for place in range(1, more + 1)), *self.tokens]


@dataclass(frozen=True)
class Scored:
    """A finished cell of a study: the planned entry and the run that fills it."""

    entry: Entry
    record: RunRecord
    trials: tuple[RunRecord, ...] = ()
    """The trials for its recipe, some with another seed: see :class:`Entry`."""

    def on(self, task: str) -> "Scored":
        """The same run, scored on another task."""
        return replace(self, entry=self.entry.model_copy(update={"target": task}))

    @property
    def score(self) -> TaskScore:
        return self.record.score(self.entry.target)

    @property
    def value(self) -> float:
        return self.score.value

    @property
    def seconds(self) -> float:
        """Seconds of the run and of the other trials with its seed."""
        tried = {each.run: each.cost.seconds for each in self.trials if each.seed == self.record.seed}
        return sum({**tried, self.record.run: self.record.cost.seconds}.values())

    @property
    def total_seconds(self) -> float:
        """:attr:`seconds` plus those of the runs that it builds on, if known."""
        return self.entry.total_seconds or self.seconds


class StudyRuns:
    """A study's entries with their records, and the requested attention maps.

    Raises:
        PipelineError: a run is missing from the ledger.
    """

    def __init__(self, result: StudyResult, ledger: Ledger, maps: Sequence[AttentionMap] = ()) -> None:
        self.result, self.study, self.ledger, self.maps = result, result.study, ledger, maps
        self.predictions, self.curve = cache(ledger.predictions), cache(ledger.curve)
        self.scored = tuple(
            Scored(entry, self._record(entry.run), tuple(map(self._record, entry.trials)))
            for entry in result.entries
            if entry.run is not None
        )
        self._entries, self._cells = defaultdict[Any, list[Entry]](list), defaultdict[Any, list[Scored]](list)
        for entry in result.entries:
            for line in (entry.line, entry.line.row):
                self._entries[line, entry.target, entry.rows].append(entry)
        for scored in sorted(self.scored, key=lambda scored: scored.entry.seed):
            for line in (scored.entry.line, scored.entry.line.row):
                self._cells[line, scored.entry.target, scored.entry.rows].append(scored)

    @cached_property
    def lines(self) -> tuple[Line, ...]:
        """The lines of the main table: the study's rows in order, with a line per source of sequential fine-tuning."""
        lines = dict.fromkeys(entry.line for entry in self.result.entries if entry.rows is None)
        return tuple(sorted(lines, key=lambda line: self.study.methods.index(line.row)))

    @cached_property
    def rows(self) -> tuple[str, ...]:
        """The study's rows that have lines."""
        return tuple(dict.fromkeys(line.row for line in self.lines))

    @property
    def reference(self) -> Line:
        return Line(self.study.reference)

    @cached_property
    def metrics(self) -> dict[str, Metric]:
        """The metric of every target that has runs."""
        return {scored.entry.target: scored.score.metric for scored in self.scored}

    def title(self, line: Line) -> str:
        return self.study.title(line.row, line.source)

    def titles(self, lines: Iterable[Line]) -> str:
        """The distinct titles as ``a; b``, because a title may contain commas (``sequential, from sst``)."""
        return "; ".join(dict.fromkeys(map(self.title, lines)))

    def column(self, target: str) -> str:
        """The head of a column of scores: ``sst (accuracy)``."""
        return f"{target} ({self.metrics.get(target, '-')})"

    def cell(self, line: Line | str, target: str, rows: int | None = None) -> list[Scored]:
        """The finished runs of a line, or of all lines of a named row, on a target, by seed.

        Args:
            rows: a point of the low-resource curve; None: the main table.
        """
        return self._cells.get((line, target, rows), [])

    def groups(self, line: Line | str) -> dict[str, list[Scored]]:
        """The main-table cells of a line or row that have runs, by target."""
        return {target: group for target in self.study.targets if (group := self.cell(line, target))}

    def all(self, line: Line | str) -> list[Scored]:
        """The finished runs of a line or row in the main table, target by target."""
        return [scored for group in self.groups(line).values() for scored in group]

    def cells(self) -> Iterator[tuple[Line, str, list[Scored]]]:
        """The main-table cells that have runs, line by line."""
        return ((line, target, group) for line in self.lines for target, group in self.groups(line).items())

    def entries(self, line: Line | str, target: str, rows: int | None = None) -> list[Entry]:
        """The entries planned for :meth:`cell`."""
        return self._entries.get((line, target, rows), [])

    def trainer(self, scored: Scored) -> RunRecord | None:
        """The run that trained on the target; it gives the cell's rows, steps, epochs and recipe.

        This is the cell's run, or an ancestor if the model learned tasks in turn and the target was an earlier one.
        None if no run trained on the target, or if it is unknown.
        """
        step: RunRecord | None = scored.record
        while step is not None and scored.entry.target not in step.trained_on:
            step = self.ledger.find(step.sources[0].run) if step.sources else None
        return step

    def recipe_of(self, scored: Scored) -> Recipe:
        """The recipe for the target; a model of several tasks has one per task."""
        trainer = self.trainer(scored)
        return scored.record.recipe if trainer is None else trainer.recipe_of(scored.entry.target)

    def train_rows(self, scored: Scored) -> int:
        """The target's training rows; 0 without a :meth:`trainer`."""
        trainer = self.trainer(scored)
        return 0 if trainer is None else trainer.score(scored.entry.target).train_rows

    def epochs(self, scored: Scored) -> int:
        """The planned epochs on the target (joint training: of its mix); 0 if nothing trains or without a
        :meth:`trainer`."""
        trainer = self.trainer(scored)
        if trainer is None or trainer.cost.trainable_parameters == 0 or trainer.recipe.is_solved:
            return 0
        steps = 0 if KINDS[trainer.kind].is_ensemble else steps_per_epoch(trainer)
        return trainer.recipe.epochs_of(steps) if steps else 0

    def mean(self, line: Line) -> float | None:
        """The mean over targets of a line's mean scores; None if it lacks one."""
        means = [statistics.mean(scored.value for scored in group) for group in self.groups(line).values()]
        return statistics.mean(means) if len(means) == len(self.study.targets) else None

    def ended_rising(self, group: Iterable[Scored]) -> list[bool]:
        """Of every run that trained for few optimiser steps, whether it kept its last epoch."""
        trained = ((trainer, self.epochs(scored)) for scored in group if (trainer := self.trainer(scored)) is not None)
        return [run.best_epoch == epochs for run, epochs in trained if epochs and self.steps(run) < MIN_STEPS]

    def is_rising(self, group: Iterable[Scored]) -> bool:
        """Whether most of the runs ended while their scores still rose."""
        ended = self.ended_rising(group)
        return 2 * sum(ended) > len(ended)

    def dev_curve(self, scored: Scored) -> pd.Series | None:
        """The target's validation scores, epoch by epoch.

        None for earlier tasks of sequential fine-tuning, because the curve covers only the last task.
        """
        curve, task = self.curve(scored.record.run), scored.entry.target
        # In a model of several tasks, column dev is the mean that selects; every task also has a column.
        if f"dev_{task}" in curve:
            return curve[f"dev_{task}"]
        return curve["dev"] if scored.record.trained_on == (task,) else None

    def difference(self, ours: Sequence[Scored], theirs: Sequence[Scored], target: str) -> Difference | None:
        """The paired difference of two groups of runs on a target over their common seeds; None without any.

        ``ours`` may have several runs per seed; all are paired with the run of that seed in ``theirs``.
        """
        by_seed = {scored.entry.seed: scored.record.run for scored in theirs}
        pairs = [(s.record.run, by_seed[s.entry.seed]) for s in ours if s.entry.seed in by_seed]
        return self.difference_of_pairs(pairs, target)

    def differences(
        self, line: Line | str, other: Line, targets: Sequence[str], rows: int | None = None
    ) -> tuple[dict[str, Difference | None], Difference | None]:
        """The :meth:`difference` of two lines on each target, and that of their means; None if one cannot be paired."""
        sides = {target: (self.cell(line, target, rows), self.cell(other, target, rows)) for target in targets}
        parts = {target: self.difference(*both, target) for target, both in sides.items()}
        known = [difference for difference in parts.values() if difference is not None]
        if len(known) < len(targets):
            return parts, None
        return parts, mean_difference(known, self.shared([[*ours, *theirs] for ours, theirs in sides.values()]))

    def difference_of_pairs(self, pairs: Sequence[tuple[str, str | None]], task: str) -> Difference | None:
        """The paired difference on a task over pairs of a system's run and a reference's run.

        None without pairs, or if a pair lacks the reference.

        Raises:
            PipelineError: the runs were not scored on the same examples in the same order.
        """
        sides = [[self.predictions(run, task) for run in side if run is not None] for side in zip(*pairs, strict=True)]
        if not pairs or len(sides[1]) < len(pairs):
            return None
        metric = self._record(pairs[0][0]).score(task).metric
        difference = difference_of_tables(metric, sides[0], sides[1], [self._record(run).seed for run, _ in pairs])
        if difference is None:
            raise PipelineError(
                "runs of this study were scored on different rows, so they cannot be paired: compare again"
            )
        return difference

    def shared(self, targets: Sequence[Sequence[Scored]]) -> Shared:
        """What a seed's runs on several targets share, for both sides of a comparison: see :func:`shared_by`."""
        # With source_seed, all seeds have the same sources, and select among them for each target separately.
        return shared_by(targets, None if self.study.source_seed is not None else self.ledger.find)

    def steps(self, record: RunRecord) -> int:
        """The number of optimiser steps that a run took."""
        return int(self.curve(record.run)["epoch"].max()) * steps_per_epoch(record)

    def steps_on(self, record: RunRecord, target: str) -> int | None:
        """The optimiser steps on rows of ``target`` that a model took, in its run and those that it continues.

        None if one of these runs is missing from the ledger.
        """
        steps = self.steps(record) if target in record.trained_on else 0
        for source in record.continued:
            before = self.ledger.find(source.run)
            earlier = self.steps_on(before, target) if before is not None else None if source.task == target else 0
            if earlier is None:
                return None
            steps += earlier
        return steps

    def _record(self, run: str) -> RunRecord:
        record = self.ledger.find(run)
        if record is None:
            raise PipelineError(
                f"run {run} of study {self.study.name} is no longer in {self.ledger.root}: compare again"
            )
        return record


def steps_per_epoch(record: RunRecord) -> int:
    """The number of optimiser steps per epoch of a run."""
    tasks = record.trained_on
    batches = {task: record.recipe_of(task).steps_over(record.score(task).train_rows) for task in tasks}
    return record.recipe.joint_steps(batches) if KINDS[record.kind].is_joint else batches[tasks[0]]


def difference_of_tables(
    metric: Metric, ours: Sequence[pd.DataFrame], theirs: Sequence[pd.DataFrame], seeds: Sequence[int]
) -> Difference | None:
    """The paired difference of runs by saved predictions, a pair per seed; rows of a ``group`` count as one.

    None if the tables are empty, or do not hold the same examples in the same order.
    """
    first = ours[0]
    if first.empty:
        return None
    for table in (*ours, *theirs):
        if not (table["id"].equals(first["id"]) and np.array_equal(table["label"], first["label"])):
            return None
    system, reference = ([table["prediction"].to_numpy() for table in side] for side in (ours, theirs))
    # Early versions did not save groups.
    groups = next((table["group"].to_numpy() for table in (*ours, *theirs) if "group" in table), None)
    return paired_difference(metric, system, reference, first["label"].to_numpy(), seeds, groups)


def shared_by(targets: Sequence[Sequence[Scored]], find: Callable[[str], RunRecord | None] | None) -> Shared:
    """What correlates the scores of one seed's runs on several targets.

    ``runs``: one run answers several targets, as after joint training. ``sources``: runs on different targets build on
    the same run, or one builds on the other, as fusions do on their seed's adapters. Runs that all seeds share do not
    count, because they add no variance between seeds.

    Args:
        targets: the runs of both sides of a comparison, target by target.
        find: looks up a run's record, to follow what it builds on; None: sources do not depend on the seed.
    """
    own = [{scored.record.run for scored in runs} for runs in targets]
    if len(set().union(*own)) < sum(map(len, own)):
        return "runs"
    if find is None:
        return "nothing"
    behind: list[set[str]] = []
    for runs in targets:
        by_seed = defaultdict[int, set[str]](set)
        for scored in runs:
            by_seed[scored.entry.seed] |= runs_behind(scored.record, find)
        of_all_seeds = set.intersection(*by_seed.values()) if len(by_seed) > 1 else set()
        behind.append(set().union(*by_seed.values()) - of_all_seeds)
    return "sources" if len(set().union(*behind)) < sum(map(len, behind)) else "nothing"


def runs_behind(record: RunRecord, find: Callable[[str], RunRecord | None]) -> set[str]:
    """A run and all runs that it builds on, such as an ensemble's members and their adapters."""
    seen, left = {record.run}, [record]
    while left:
        for source in left.pop().continued:
            if source.run not in seen:
                seen.add(source.run)
                if (before := find(source.run)) is not None:
                    left.append(before)
    return seen


def joint_titles(runs: StudyRuns) -> str:
    """The rows whose runs answer several targets, as ``a; b``; empty if there is none."""
    answered = {name: Counter((one.record.run, one.entry.seed) for one in runs.all(name)) for name in runs.rows}
    return runs.titles(Line(name) for name, targets in answered.items() if max(targets.values(), default=1) > 1)


def runs_of(group: Iterable[Scored]) -> tuple[str, ...]:
    """The distinct names of the runs."""
    return tuple(dict.fromkeys(scored.record.run for scored in group))


def records_of(group: Iterable[Scored]) -> list[RunRecord]:
    """The distinct records of the runs."""
    return list({scored.record.run: scored.record for scored in group}.values())


def peak_memory_of(records: Iterable[RunRecord]) -> float | None:
    """The highest peak memory of the runs, in MB; None if none was measured, as for an ensemble."""
    return max((record.cost.peak_memory_mb for record in records if record.cost.peak_memory_mb), default=None)


def mean_of(values: Iterable[float | None]) -> float | None:
    """The mean of the known values; None without any."""
    known = [value for value in values if value is not None]
    return statistics.mean(known) if known else None
