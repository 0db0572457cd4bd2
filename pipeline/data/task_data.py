"""The rows that a run trains on, selects by and is scored on, and how they are divided."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import pandas as pd

from pipeline.data.canonical import fingerprint
from pipeline.data.overlap import first_overlap, overlapping_rows
from pipeline.data.split import cut, stratified
from pipeline.data.tasks import Task
from pipeline.system.errors import PipelineError

DEV_SEED = 20240101
"""The seed that holds out and samples dev rows, so that they are the same for all runs, whatever their seeds."""


@dataclass(frozen=True)
class Added:
    """How many rows a source of extra data added, and how many were left out because their text is scored."""

    rows: int  # added to the training rows
    in_dev: int = 0  # left out: in the target's dev split
    in_test: int = 0  # left out: in the target's test texts, if these can be read
    in_other_dev: int = 0  # left out: in the dev split of another task that is scored
    in_train: int = 0  # added although their text is also in the target's training rows


@dataclass(frozen=True)
class TaskData:
    """The labelled rows of a run: for training, for selection, and for scoring."""

    train: pd.DataFrame
    dev: pd.DataFrame
    """Validation rows, which select an epoch, an anchor or an adapter."""
    test: pd.DataFrame | None = None
    """Test rows; None if the run is scored on dev."""
    # Training rows left out because their text is in a dev split: counts by that split's task.
    dropped: Mapping[str, int] = field(default_factory=dict)
    # Training rows of other tasks, appended to the task's rows, by task.
    added: Mapping[str, Added] = field(default_factory=dict)
    whole: TaskData | None = field(default=None, repr=False)  # if this is a sample: the data it was drawn from

    @property
    def scored(self) -> pd.DataFrame:
        """The rows that a table scores."""
        return self.dev if self.test is None else self.test

    @property
    def held_out(self) -> pd.DataFrame:
        """All validation and test rows."""
        return self.dev if self.test is None else pd.concat([self.dev, self.test], ignore_index=True)

    @cached_property
    def fingerprint(self) -> dict[str, str]:
        """Fingerprints by split; ``test`` only if there are test rows."""
        return {"train": fingerprint(self.train), **self._held_out_fingerprint}

    @property
    def scored_fingerprint(self) -> str:
        return self._held_out_fingerprint["dev" if self.test is None else "test"]

    @cached_property
    def _held_out_fingerprint(self) -> dict[str, str]:
        # Samples for many seeds share these rows.
        if self.whole is not None and self.whole.dev is self.dev and self.whole.test is self.test:
            return self.whole._held_out_fingerprint
        fingerprints = {"dev": fingerprint(self.dev)}
        return fingerprints if self.test is None else {**fingerprints, "test": fingerprint(self.test)}

    @cached_property
    def dev_in_train(self) -> int:
        """Dev rows whose text is also in these training rows."""
        return int(overlapping_rows(self.dev, self.train).sum())

    @cached_property
    def test_in_train(self) -> int:
        """Test rows whose text is also in these training rows."""
        return 0 if self.test is None else int(overlapping_rows(self.test, self.train).sum())

    def without(self, held_out: Mapping[str, pd.DataFrame]) -> TaskData:
        """Drop the training rows whose text is in ``held_out``, which has the validation and test rows by task.

        A row whose text is in several counts for the first in :attr:`dropped`.

        Raises:
            PipelineError: fewer than two classes remain.
        """
        overlaps = first_overlap(self.train, list(held_out.values()))
        if (overlaps < 0).all():
            return self
        counts = np.bincount(overlaps[overlaps >= 0], minlength=len(held_out))
        dropped = {name: int(count) for name, count in zip(held_out, counts, strict=True) if count}
        train = self.train[overlaps < 0].reset_index(drop=True)
        if train["label"].nunique() < 2:
            names = ", ".join(f"'{name}'" for name in dropped)
            raise PipelineError(
                f"without the rows that occur in dev or test of {names}, {len(train)} training rows are left, too few"
                " to train on: give rows that these do not have"
            )
        return replace(self, train=train, dropped={**self.dropped, **dropped})

    def sample(
        self, task: Task, limit: int | None, seed: int, dev_limit: int | None, test_limit: int | None = None
    ) -> TaskData:
        """A stratified sample: ``seed`` draws ``limit`` rows of train; ``dev_limit`` rows of dev and ``test_limit`` of
        test do not depend on it."""

        def part(rows: pd.DataFrame, size: int | None, seed: int, option: str) -> pd.DataFrame:
            if size is None or size >= len(rows):
                return rows
            chosen = rows.iloc[stratified(rows["label"], size, seed)].reset_index(drop=True)
            if chosen["label"].nunique() < 2:
                raise PipelineError(f"{option} {size} leaves a single class of task '{task.name}': raise it")
            return chosen

        train, dev = part(self.train, limit, seed, "a limit of"), part(self.dev, dev_limit, DEV_SEED, "--dev-limit")
        test = None if self.test is None else part(self.test, test_limit, DEV_SEED, "--dev-limit")
        return replace(self, train=train, dev=dev, test=test, whole=self)

    def adding(
        self, source: str, rows: pd.DataFrame, scored: Sequence[tuple[str, pd.DataFrame]], limit: int | None, seed: int
    ) -> TaskData:
        """Add ``rows`` of extra data from ``source`` to the training rows, except rows whose text is scored.

        Rows that repeat a training row are kept and counted: two people may have labelled a text.

        Args:
            scored: held-out rows, by the count of :class:`Added` for rows left out because of them. A row whose text
                is in several counts for the first.
            limit: if more rows remain, ``seed`` draws a stratified sample of as many.
        """
        first = first_overlap(rows, [texts for _, texts in scored])
        left_out = Counter(scored[place][0] for place in first[first >= 0])
        rows = rows[first < 0]
        if limit is not None and limit < len(rows):
            rows = rows.iloc[stratified(rows["label"], limit, seed)]
        in_train = int(overlapping_rows(rows, self.train).sum())
        train = pd.concat([self.train, rows[list(self.train.columns)]], ignore_index=True)
        added = Added(rows=len(rows), in_train=in_train, **left_out)
        return replace(self, train=train, added={**self.added, source: added})

    def permuted(self, seed: int) -> TaskData:
        """The same rows with the training labels shuffled, so that only class frequencies can be learned.

        Training on them is a control for what real labels teach (Zhang et al. 2017; Hewitt & Liang 2019).
        """
        order = np.random.default_rng(seed).permutation(len(self.train))
        train = self.train.assign(label=self.train["label"].to_numpy()[order])
        return replace(self, train=train, whole=self)

    def halved(self, task: Task, seed: int) -> TaskData:
        """Select on one half of dev and score on the other; see :func:`pipeline.data.split.cut`."""
        dev, test = _parts(self.dev, 0.5, seed, f"dev of task '{task.name}'")
        return replace(self, dev=dev, test=test)

    def holding_out(self, task: Task, size: int, seed: int) -> TaskData:
        """Hold out about ``size`` training rows, at most half of them, to score on; select on all of dev.

        They share no text with the remaining training rows. Rows whose text is also in dev are left out.

        Raises:
            PipelineError: too few rows can be held out.
        """
        share = min(size / len(self.train), 0.5)
        held_out, train = _parts(self.train, share, seed, f"training rows of task '{task.name}'")
        in_dev = overlapping_rows(held_out, self.dev)
        test = held_out[~in_dev].reset_index(drop=True)
        if len(test) < len(held_out) / 2 or test["label"].nunique() < 2:
            raise PipelineError(
                f"task '{task.name}': {in_dev.sum()} of {len(held_out)} training rows to be held out also occur in dev,"
                " and the others are too few to score a run: set another scoring for this task in scoring.tasks"
            )
        return replace(self, train=train, test=test)

    def choosing_in_train(self, task: Task, share: float, seed: int) -> TaskData:
        """Hold out a ``share`` of the training rows to select on, and score on all of dev.

        This is all that a person with few labelled rows can do: true few-shot learning (Perez et al. 2021).
        """
        dev, train = _parts(self.train, share, seed, f"training rows of task '{task.name}'")
        return replace(self, train=train, dev=dev, test=self.dev)


def _parts(rows: pd.DataFrame, share: float, seed: int, what: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    chosen = cut(rows, share, seed, what)
    return rows[chosen].reset_index(drop=True), rows[~chosen].reset_index(drop=True)
