"""The finished runs of a study, found by row, target and seed."""

import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, wraps
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from pipeline.records.ledger import Ledger
from pipeline.records.run_record import RunRecord, TaskScore
from pipeline.records.studies import Entry, Line, StudyResult
from pipeline.reporting.text import MISSING
from pipeline.settings.kinds import KINDS
from pipeline.settings.recipe import Recipe
from pipeline.stats.metrics import Metric
from pipeline.stats.paired import Difference, Shared, paired_difference
from pipeline.system.errors import PipelineError

Result = TypeVar("Result")


@dataclass(frozen=True)
class AttentionMap:
    """What a model's layers attend to in one input."""

    run: str
    title: str
    text: str
    tokens: tuple[str, ...]
    layers: Mapping[int, np.ndarray]
    """By layer, counted from 1: (T, S), a row a token; S is T, or more where a prefix stands before the tokens."""
    own_layers: int | None = None
    """How many layers from the top are of the task alone, of a model whose tasks share the others; None: it shares
    none, or all."""

    def part(self, layer: int, depth: int) -> str:
        """Whose a layer of ``depth`` is, where the model is split."""
        if self.own_layers is None:
            return ""
        return "its own" if layer > depth - self.own_layers else "shared"

    def keys(self, layer: int) -> list[str]:
        """What is looked at: the tokens, after the places of a prefix."""
        more = self.layers[layer].shape[1] - len(self.tokens)
        return [*(f"prefix {place}" for place in range(1, more + 1)), *self.tokens]


@dataclass(frozen=True)
class Scored:
    """A finished cell of a study: what was planned, and the run that fills it."""

    entry: Entry
    record: RunRecord
    trials: tuple[RunRecord, ...] = ()
    """The runs that were tried for its recipe, some with another seed: see :class:`Entry`."""

    def on(self, task: str) -> "Scored":
        """The same run as an answer to another task that it was scored on."""
        return replace(self, entry=self.entry.model_copy(update={"target": task}))

    @property
    def score(self) -> TaskScore:
        return self.record.score(self.entry.target)

    @property
    def value(self) -> float:
        return self.score.value

    @property
    def seconds(self) -> float:
        """Those of the run and of the others that were tried with its seed."""
        tried = {each.run: each.cost.seconds for each in self.trials if each.seed == self.record.seed}
        return sum({**tried, self.record.run: self.record.cost.seconds}.values())

    @property
    def total_seconds(self) -> float:
        """With those of the runs it is built on, where they are known."""
        return self.entry.total_seconds or self.seconds


class StudyRuns:
    """A study's entries with their records, and the attention maps that were asked for.

    Raises:
        PipelineError: a run is no longer in the ledger.
    """

    def __init__(self, result: StudyResult, ledger: Ledger, maps: Sequence[AttentionMap] = ()) -> None:
        self.result, self.study, self.ledger, self.maps = result, result.study, ledger, maps
        self.predictions, self.curve = cache(ledger.predictions), cache(ledger.curve)
        self.computed: dict[Any, Any] = {}  # by function, the results of those that are marked with :func:`once`
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
        """The lines of the main table: the study's rows in its order, sequential fine-tuning once a source."""
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
        """By target, for the targets that have runs."""
        return {scored.entry.target: scored.score.metric for scored in self.scored}

    def title(self, line: Line) -> str:
        return self.study.title(line.row, line.source)

    def titles(self, lines: Iterable[Line]) -> str:
        """Each title once, ``a; b``: one may have commas, as ``sequential, from sst``."""
        return "; ".join(dict.fromkeys(map(self.title, lines)))

    def column(self, target: str) -> str:
        """The head of a column of scores: ``sst (accuracy)``."""
        return f"{target} ({self.metrics.get(target, MISSING)})"

    def cell(self, line: Line | str, target: str, rows: int | None = None) -> list[Scored]:
        """The finished runs of a line, or of all lines of the row of that name, on a target, by seed.

        Args:
            rows: a point of the low-resource curve; None: the main table.
        """
        return self._cells.get((line, target, rows), [])

    def groups(self, line: Line | str) -> dict[str, list[Scored]]:
        """The cells of a line or row in the main table by target, where there are runs."""
        return {target: group for target in self.study.targets if (group := self.cell(line, target))}

    def all(self, line: Line | str) -> list[Scored]:
        """The finished runs of a line or row in the main table, target by target."""
        return [scored for group in self.groups(line).values() for scored in group]

    def cells(self) -> Iterator[tuple[Line, str, list[Scored]]]:
        """The cells of the main table that have runs, line by line."""
        return ((line, target, group) for line in self.lines for target, group in self.groups(line).items())

    def entries(self, line: Line | str, target: str, rows: int | None = None) -> list[Entry]:
        """What was planned for :meth:`cell`."""
        return self._entries.get((line, target, rows), [])

    def trainer(self, scored: Scored) -> RunRecord | None:
        """The run that trained on the target, which rows, steps, epochs and recipe of a cell are those of.

        It is the cell's own, but for the earlier tasks of models that learned tasks in turn: of these an earlier run.
        None where no run trained on the target, or it is not known which.
        """
        step: RunRecord | None = scored.record
        while step is not None and scored.entry.target not in step.trained_on:
            step = self.ledger.find(step.sources[0].run) if step.sources else None
        return step

    def recipe_of(self, scored: Scored) -> Recipe:
        """How the target was trained: a model of several tasks has a recipe for each."""
        trainer = self.trainer(scored)
        return scored.record.recipe if trainer is None else trainer.recipe_of(scored.entry.target)

    def train_rows(self, scored: Scored) -> int:
        """The target's training rows; 0 where there is no :meth:`trainer`."""
        trainer = self.trainer(scored)
        return 0 if trainer is None else trainer.score(scored.entry.target).train_rows

    def epochs(self, scored: Scored) -> int:
        """The planned epochs on the target, in joint training those of its mixing; 0 where nothing trains, or there is
        no :meth:`trainer`."""
        trainer = self.trainer(scored)
        if trainer is None or trainer.cost.trainable_parameters == 0 or KINDS[trainer.kind].is_ensemble:
            return 0
        steps = steps_per_epoch(trainer)
        return trainer.recipe.epochs_of(steps) if steps else 0

    def dev_curve(self, scored: Scored) -> pd.Series | None:
        """The scores on the validation rows of the target, epoch by epoch, while the run trained.

        None for a task before the last one of sequential fine-tuning: the curve is of the last one alone.
        """
        curve, task = self.curve(scored.record.run), scored.entry.target
        # A model of several tasks is selected by its mean score, in column dev; each task has a column of its own.
        if f"dev_{task}" in curve:
            return curve[f"dev_{task}"]
        return curve["dev"] if scored.record.trained_on == (task,) else None

    def difference(self, ours: Sequence[Scored], theirs: Sequence[Scored], target: str) -> Difference | None:
        """The paired difference of two groups of runs on a target over the seeds both have; None without any.

        ``ours`` may have several runs a seed, each of which is paired with the other's run of that seed.
        """
        by_seed = {scored.entry.seed: scored.record.run for scored in theirs}
        pairs = [(s.record.run, by_seed[s.entry.seed]) for s in ours if s.entry.seed in by_seed]
        return self.difference_of_pairs(pairs, target)

    def difference_of_pairs(self, pairs: Sequence[tuple[str, str | None]], task: str) -> Difference | None:
        """The paired difference of runs on a task: pairs of a system's and a reference's run.

        None without any pair, or where one lacks the reference.

        Raises:
            PipelineError: they were not scored on the same examples in the same order.
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
        """What the runs of one seed on several targets share: :func:`shared_by`, of both sides of a comparison."""
        # Under source_seed all seeds have the same sources, and choose among them for each target alone.
        return shared_by(targets, None if self.study.source_seed is not None else self.ledger.find)

    def steps(self, record: RunRecord) -> int:
        """The optimiser steps that a run took."""
        return int(self.curve(record.run)["epoch"].max()) * steps_per_epoch(record)

    def steps_on(self, record: RunRecord, target: str) -> int | None:
        """The optimiser steps on rows of ``target`` behind a model: of its run and of those that it continues.

        None if such a run is no longer in the ledger.
        """
        steps: list[int | None] = [self.steps(record) if target in record.trained_on else 0]
        for source in record.continued:
            before = self.ledger.find(source.run)
            if before is not None:
                steps.append(self.steps_on(before, target))
            elif source.task == target:
                return None
        known = [number for number in steps if number is not None]
        return sum(known) if len(known) == len(steps) else None

    def _record(self, run: str) -> RunRecord:
        record = self.ledger.find(run)
        if record is None:
            raise PipelineError(
                f"run {run} of study {self.study.name} is no longer in {self.ledger.root}: compare again"
            )
        return record


def once(compute: Callable[[StudyRuns], Result]) -> Callable[[StudyRuns], Result]:
    """Compute once for a study: tables, figures and sentences share the result, which goes when its runs go."""

    @wraps(compute)
    def computed(runs: StudyRuns) -> Result:
        if compute not in runs.computed:
            runs.computed[compute] = compute(runs)
        return runs.computed[compute]

    return computed


def steps_per_epoch(record: RunRecord) -> int:
    """The optimiser steps of an epoch of a run."""
    tasks = record.trained_on
    batches = {task: record.recipe_of(task).steps_over(record.score(task).train_rows) for task in tasks}
    return record.recipe.joint_steps(batches) if KINDS[record.kind].is_joint else batches[tasks[0]]


def difference_of_tables(
    metric: Metric, ours: Sequence[pd.DataFrame], theirs: Sequence[pd.DataFrame], seeds: Sequence[int]
) -> Difference | None:
    """The paired difference of runs by their saved predictions, a pair a seed; rows of a ``group`` count as one.

    None if they are not of the same examples in the same order, or of none.
    """
    first = ours[0]
    if first.empty:
        return None
    for table in (*ours, *theirs):
        if not (table["id"].equals(first["id"]) and np.array_equal(table["label"], first["label"])):
            return None
    system, reference = ([table["prediction"].to_numpy() for table in side] for side in (ours, theirs))
    # Runs of versions before groups were saved have none.
    groups = next((table["group"].to_numpy() for table in (*ours, *theirs) if "group" in table), None)
    return paired_difference(metric, system, reference, first["label"].to_numpy(), seeds, groups)


def shared_by(targets: Sequence[Sequence[Scored]], find: Callable[[str], RunRecord | None] | None) -> Shared:
    """What the runs of one seed on several targets share, so that it moves their scores together.

    ``runs``: one answers several targets, as after joint training. ``sources``: a run on one target is built on what a
    run on another is, or is itself, as fusions on the adapters of their seed. What all seeds share moves nothing from
    seed to seed.

    Args:
        targets: the runs of both sides of a comparison, target by target.
        find: the record of a run, to see what it is built on; None: that does not depend on the seed.
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
            by_seed[scored.entry.seed] |= _behind(scored.record, find)
        of_all_seeds = set.intersection(*by_seed.values()) if len(by_seed) > 1 else set()
        behind.append(set().union(*by_seed.values()) - of_all_seeds)
    return "sources" if len(set().union(*behind)) < sum(map(len, behind)) else "nothing"


def _behind(record: RunRecord, find: Callable[[str], RunRecord | None]) -> set[str]:
    """A run, those that it is built on, and so on: an ensemble's members, and the adapters of these."""
    seen, left = {record.run}, [record]
    while left:
        for source in left.pop().continued:
            if source.run not in seen:
                seen.add(source.run)
                if (before := find(source.run)) is not None:
                    left.append(before)
    return seen


def targets_at_once(runs: StudyRuns, line: Line | str) -> int:
    """How many targets one run of a line or row answers: 1 where it trains a run for each."""
    answered = Counter((scored.record.run, scored.entry.seed) for scored in runs.all(line))
    return max(answered.values(), default=1)


def joint_titles(runs: StudyRuns) -> str:
    """The rows of which one run answers several targets, ``a; b``; empty where there is none."""
    return runs.titles(Line(name) for name in runs.rows if targets_at_once(runs, name) > 1)


def runs_of(group: Iterable[Scored]) -> tuple[str, ...]:
    """The runs' names, each once."""
    return tuple(dict.fromkeys(scored.record.run for scored in group))


def records_of(group: Iterable[Scored]) -> list[RunRecord]:
    """The runs' records, each once."""
    return list({scored.record.run: scored.record for scored in group}.values())


def peak_memory_of(records: Iterable[RunRecord]) -> float | None:
    """The highest peak memory of the runs, in MB; None where none was measured, as of an ensemble."""
    return max((record.cost.peak_memory_mb for record in records if record.cost.peak_memory_mb), default=None)


def mean_of(values: Iterable[float | None]) -> float | None:
    """The mean of the values that are known; None without any."""
    known = [value for value in values if value is not None]
    return statistics.mean(known) if known else None
