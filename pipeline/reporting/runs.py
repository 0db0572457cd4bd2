"""The finished runs of a study, found by row, target and seed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from pipeline.data.load import Added
from pipeline.records.ledger import Ledger, RunRecord
from pipeline.reporting.entries import Entry, StudyResult
from pipeline.settings.recipe import Recipe
from pipeline.stats.metrics import Metric
from pipeline.stats.paired import Resampled, resample_paired
from pipeline.system.errors import PipelineError


@dataclass(frozen=True)
class Scored:
    """A cell of a study that finished: what was planned, and the run that answers it."""

    entry: Entry
    record: RunRecord

    @property
    def value(self) -> float:
        return self.record.score_of(self.entry.target)

    @property
    def train_rows(self) -> int | None:
        """Training rows of the target."""
        if self.record.task == self.entry.target:
            return self.record.rows["train"]
        return self.record.others[self.entry.target].train_rows

    @property
    def added(self) -> Mapping[str, Added]:
        """Other tasks' rows among the training rows of the target."""
        own = self.record.task == self.entry.target
        return self.record.added if own else self.record.others[self.entry.target].added

    @property
    def dev_rows(self) -> int:
        if self.record.task == self.entry.target:
            return self.record.rows["dev"]
        return self.record.others[self.entry.target].rows

    @property
    def recipe(self) -> dict[str, Any]:
        """The recipe for the target: a model of several tasks has one for each."""
        for other in self.record.identity.get("others", ()):
            if other["task"]["name"] == self.entry.target:
                # Kept as it was: a key that came later has its default.
                return Recipe().model_dump(mode="json") | other["recipe"]
        return self.record.recipe.model_dump(mode="json")

    @property
    def epochs(self) -> int:
        """The planned passes; of a model of several tasks those over the smallest, and none where nothing trains."""
        if self.record.cost.trainable_parameters == 0:
            return 0
        others = [other.train_rows for other in self.record.others.values() if other.train_rows is not None]
        return self.record.recipe.epochs_over(min([self.record.rows["train"], *others]))


class StudyRuns:
    """A study's entries with their records.

    Raises:
        PipelineError: a run is no longer in the ledger.
    """

    def __init__(self, result: StudyResult, ledger: Ledger) -> None:
        self.result, self.study, self.ledger = result, result.study, ledger
        self.scored = tuple(self._scored(entry) for entry in result.entries if entry.run is not None)
        self._predictions: dict[tuple[str, str], pd.DataFrame] = {}
        self._curves: dict[str, pd.DataFrame] = {}

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """The lines of the main table: the study's rows in its order, sequential tuning once a source."""
        found = dict.fromkeys(entry.method for entry in self.result.entries if entry.rows is None)
        return tuple(sorted(found, key=lambda label: self.study.methods.index(row_of(label))))

    @cached_property
    def rows(self) -> tuple[str, ...]:
        """The study's rows that have lines."""
        return tuple(dict.fromkeys(row_of(label) for label in self.labels))

    @cached_property
    def metrics(self) -> dict[str, Metric]:
        """By target, as far as runs say."""
        return {scored.entry.target: scored.record.metric_of(scored.entry.target) for scored in self.scored}

    def title(self, label: str) -> str:
        return self.study.title(label)

    def cell(self, label: str, target: str, rows: int | None = None) -> list[Scored]:
        """The finished runs of a line on a target, by seed; ``rows`` names a point of the low-resource curve."""
        return self._where(lambda entry: entry.method == label, target, rows)

    def row(self, row: str, target: str, rows: int | None = None) -> list[Scored]:
        """The finished runs of a row on a target: of sequential tuning those from all sources."""
        return self._where(lambda entry: row_of(entry.method) == row, target, rows)

    def failures(self, label: str, target: str, rows: int | None = None) -> list[Entry]:
        return [
            entry
            for entry in self.result.entries
            if entry.error is not None and (entry.method, entry.target, entry.rows) == (label, target, rows)
        ]

    def predictions(self, run: str, task: str) -> pd.DataFrame:
        if (run, task) not in self._predictions:
            self._predictions[run, task] = self.ledger.predictions(run, task)
        return self._predictions[run, task]

    def resampled(self, ours: Sequence[Scored], theirs: Sequence[Scored]) -> Resampled | None:
        """The paired difference of two groups of runs on one target over the seeds both have; None without any.

        ``ours`` may have several runs a seed, each of which is paired with the other's run of that seed.
        """
        by_seed = {scored.entry.seed: scored for scored in theirs}
        pairs = [(scored, by_seed[scored.entry.seed]) for scored in ours if scored.entry.seed in by_seed]
        if not pairs:
            return None
        target = pairs[0][0].entry.target
        tables = [tuple(self.predictions(scored.record.run, target) for scored in pair) for pair in pairs]
        return resample_tables(self.metrics[target], tables, seed=self.study.targets.index(target))

    def curve(self, run: str) -> pd.DataFrame:
        if run not in self._curves:
            self._curves[run] = self.ledger.curve(run)
        return self._curves[run]

    def steps(self, record: RunRecord) -> int:
        """The optimiser steps that a run took."""
        epochs = int(self.curve(record.run)["epoch"].max())
        own = record.recipe.steps_over(record.rows["train"])
        if record.kind != "multitask":
            return epochs * own
        others = [(o.recipe or record.recipe, o.train_rows) for o in record.others.values() if o.train_rows is not None]
        return epochs * record.recipe.joint_steps([own, *(recipe.steps_over(rows) for recipe, rows in others)])

    def steps_on(self, record: RunRecord, target: str) -> int | None:
        """The optimiser steps on rows of ``target`` behind a model: of its run and of those that it goes on from.

        None if such a run is no longer in the ledger.
        """
        total = self.steps(record) if selected_on(record, target) else 0
        # An adapter's sources are what it might have begun as.
        for source in record.sources if record.kind != "adapter" else ():
            before = self.ledger.find(source.run)
            if before is None and source.task != target:
                continue
            steps = self.steps_on(before, target) if before is not None else None
            if steps is None:
                return None
            total += steps
        return total

    def _scored(self, entry: Entry) -> Scored:
        assert entry.run is not None
        record = self.ledger.find(entry.run)
        if record is None:
            raise PipelineError(
                f"run {entry.run} of study {self.study.name} is no longer in {self.ledger.root}: compare again"
            )
        return Scored(entry, record)

    def _where(self, wanted: Callable[[Entry], bool], target: str, rows: int | None) -> list[Scored]:
        found = (
            scored
            for scored in self.scored
            if (scored.entry.target, scored.entry.rows) == (target, rows) and wanted(scored.entry)
        )
        return sorted(found, key=lambda scored: scored.entry.seed)


def row_of(label: str) -> str:
    """The study's row of a line: ``sequential`` of ``sequential:sst``."""
    return label.partition(":")[0]


def selected_on(record: RunRecord, target: str) -> bool:
    """Whether a run trained on ``target``, and so kept the epoch that is best on its dev rows."""
    if target == record.task:
        return True
    return record.kind == "multitask" and target in record.others and record.others[target].train_rows is not None


def runs_of(group: Iterable[Scored]) -> tuple[str, ...]:
    """The runs' names, each once."""
    return tuple(dict.fromkeys(scored.record.run for scored in group))


def resample_tables(metric: Metric, pairs: Sequence[Sequence[pd.DataFrame]], seed: int) -> Resampled:
    """Predictions of a system and a reference, a pair a seed, as :func:`resample_paired` reads them.

    Raises:
        PipelineError: they are not of the same examples in the same order.
    """
    first = pairs[0][0]
    for table in (table for pair in pairs for table in pair):
        if not (table["id"].equals(first["id"]) and np.array_equal(table["label"], first["label"])):
            raise PipelineError(
                "runs of this study were scored on different dev rows, so they cannot be paired: compare again"
            )
    system, reference = ([pair[side]["prediction"].to_numpy() for pair in pairs] for side in (0, 1))
    return resample_paired(metric, system, reference, first["label"].to_numpy(), seed=seed)
