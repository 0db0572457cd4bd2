"""The rows that a run trains on, selects by and is scored on.

They are loaded from files or the Hub as canonical, checked rows, divided and sampled, and extra data are added.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from pipeline.data.canonical import Unknown, as_labels, canonical_rows, fingerprint, has_labels
from pipeline.data.cells import as_label, is_blank, name_among
from pipeline.data.split import cut, first_overlap, overlapping_rows, stratified
from pipeline.data.tables import SUFFIXES, as_pandas, read_table
from pipeline.data.tasks import Extra, Hub, Split, Task, check_folder
from pipeline.system.errors import PipelineError, raise_all
from pipeline.system.reading import reading

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


def load_all_rows(task: Task, data: Path | None, *, test: bool = False) -> TaskData:
    """Checked train and dev rows of ``task``, and with ``test`` those of its labelled test split, which studies score.

    Raises:
        PipelineError: it names file, row and value.
    """
    share = held_out_share(task, data)
    if share is not None:
        rows = load_split(task, data, "train")
        dev_size = max(1, round(len(rows) * share))
        chosen = stratified(rows["label"], dev_size, DEV_SEED)
        train, dev = rows.drop(chosen).reset_index(drop=True), rows.iloc[chosen].reset_index(drop=True)
        if min(train["label"].nunique(), dev["label"].nunique()) < 2:
            raise PipelineError(
                f"task '{task.name}': dev_fraction {share} of {len(rows)} rows leaves {len(train)} to"
                f" train on and {len(dev)} for dev, and one of the two has a single label: give more rows, another"
                " dev_fraction, or a dev split"
            )
    else:
        train, dev = load_split(task, data, "train"), load_split(task, data, "dev")
    instead = "--scoring half scores a half of dev instead"
    return TaskData(train, dev, load_split(task, data, "test", instead) if test else None)


def held_out_share(task: Task, data: Path | None) -> float | None:
    """The share of train held out as dev (the source's ``dev_fraction``); None if there is a dev split, or no fraction.

    Raises:
        PipelineError: ``data`` has no folder of the task.
    """
    if data is None:
        hub = _hub_of(task)
        return None if "dev" in hub.splits else hub.dev_fraction
    share = task.files.dev_fraction
    return None if share is None or _files_of(task, data, task.files.dev)[1] else share


def load_split(
    task: Task,
    data: Path | None,
    split: Split,
    instead: str = "",
    *,
    is_scored: bool = False,
    unknown: Unknown | None = None,
) -> pd.DataFrame:
    """One labelled split in canonical form, checked.

    Args:
        instead: for the error if the split is missing: what the command can do without it.
        is_scored, unknown: as in :func:`pipeline.data.canonical.canonical_rows`.
    """
    instead = instead and f"; {instead}"
    if data is None:
        hub = _hub_of(task)
        if split not in hub.splits:
            remedy = f"give the files with --data DIR{instead}"
            raise PipelineError(f"{hub.dataset}: publishes no '{split}' split: {remedy}")
        return _hub_rows(hub, task, split, labelled=True, is_scored=is_scored)
    stem = getattr(task.files, split)
    folder, files = _files_of(task, data, stem)
    if not files:
        raise PipelineError(f"{folder}: split '{split}' is missing: no {stem}{{{','.join(SUFFIXES)}}}{instead}")
    if len(files) > 1:
        names = ", ".join(file.name for file in files)
        raise PipelineError(f"{folder}: split '{split}' is ambiguous: {names}: keep one")
    table, where = read_table(files[0]), str(files[0])
    return canonical_rows(task, table, where, source=task.files, is_scored=is_scored, unknown=unknown)


def read_test_texts(task: Task, data: Path | None) -> pd.DataFrame | None:
    """The texts of the test split in canonical form, with or without labels; None if there are none.

    Files beside ``train`` and ``dev``: ``test``, or ``test_unlabelled`` as some releases publish it.
    """
    if data is None:
        hub = _hub_of(task)
        return _hub_rows(hub, task, "test", labelled=False) if "test" in hub.splits else None
    _, files = _files_of(task, data, task.files.test, f"{task.files.test}_unlabelled")
    tables = [canonical_rows(task, read_table(file), str(file), source=task.files, labelled=False) for file in files]
    return pd.concat(tables, ignore_index=True) if tables else None


def _hub_of(task: Task) -> Hub:
    if task.hub is None:
        raise PipelineError(f"task '{task.name}' has no Hub data set: give its folder with --data DIR")
    return task.hub


def _hub_rows(hub: Hub, task: Task, split: Split, labelled: bool, is_scored: bool = False) -> pd.DataFrame:
    """One split in canonical form, from the local cache if it was downloaded before; no loading script is run."""
    # Imported here, since it takes half a second and only tasks without files need it.
    import datasets

    datasets.disable_progress_bars()
    try:
        loaded = datasets.load_dataset(hub.dataset, hub.config, split=hub.splits[split], revision=hub.revision)
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise PipelineError(
            f"data set '{hub.dataset}' cannot be downloaded from the Hub: connect, or give its files with --data DIR"
            f" ({reason})"
        ) from error
    table = as_pandas(loaded.data.table)
    # Without ids, use the row numbers ("idx") that some Hub data sets have.
    if "id" not in table.columns and "idx" in table.columns:
        table = table.rename(columns={"idx": "id"})
    where = f"{hub.dataset}:{hub.splits[split]}"
    return canonical_rows(task, table, where, source=hub, labelled=labelled, is_scored=is_scored)


def has_rows(task: Task, data: Path) -> bool:
    """Whether ``data`` has a table for any split of the task.

    Raises:
        PipelineError: there is no such folder.
    """
    folder = _folder_of(task, data)
    return folder is not None and bool(tables_in(folder, task.files.train, task.files.dev, task.files.test))


def has_labelled_test(task: Task, data: Path | None) -> bool:
    """Whether the task has a labelled test split in ``data``, or on the Hub if None."""
    if data is None:
        return "test" in _hub_of(task).splits
    return any(is_labelled(task, read_table(file)) for file in _files_of(task, data, task.files.test)[1])


def is_labelled(task: Task, table: pd.DataFrame) -> bool:
    if not has_labels(task, table.columns):
        return name_among(task.text[0], table.columns) is None  # a mistake, which is reported when the rows are read
    label = name_among(task.label, table.columns)
    return label is None or not table[label].map(is_blank).all()


def _files_of(task: Task, data: Path, *stems: str) -> tuple[Path, list[Path]]:
    """The task's folder and its tables with these names; one that is not a regular file fails when it is read."""
    folder = _folder_of(task, data)
    if folder is None:
        raise PipelineError(f"{data / task.name}: no such folder: --data must have <task>/train and <task>/dev")
    return folder, tables_in(folder, *stems)


def _folder_of(task: Task, data: Path) -> Path | None:
    check_folder(data)
    with reading(data):
        return next((data / name for name in (task.name, *task.aliases) if (data / name).is_dir()), None)


def tables_in(folder: Path, *stems: str) -> list[Path]:
    """The tables with these names in ``folder``, in the order of ``stems``; suffixes may be in any case."""
    with reading(folder):
        files = sorted(file for file in folder.iterdir() if file.suffix.lower() in SUFFIXES)
        return [file for stem in stems for file in files if file.stem == stem and file.exists()]


def extra_rows(source: Task, rows: pd.DataFrame, target: Task, extra: Extra) -> pd.DataFrame:
    """The canonical rows of ``source`` with labels converted to ``target``, and ids that name the source."""
    where, labels = f"extra data '{source.name}' for '{target.name}'", rows["label"].to_numpy()
    problems = _mistakes(source, target, extra)
    if source.is_pair != target.is_pair:
        have, wanted = ("pairs", "one text") if source.is_pair else ("one text", "pairs")
        problems = [f"its rows are {have}, and those of '{target.name}' are {wanted}: leave it out", *problems]
    raise_all(where, problems)
    if extra.labels:
        table = {as_label(key): label for key, label in extra.labels}
        labels = np.array([table[str(label)] for label in labels], dtype=float)
    elif extra.scale is not None:
        labels = extra.scale[0] * labels + extra.scale[1]
    if target.kind != "labels":
        numbers = labels.astype(float)
        labels, outside = as_labels(target, numbers)
        if outside.any():
            allowed = f"a class of '{target.name}', 0..{target.outputs - 1}"
            if target.range is not None:
                allowed = f"in the range of '{target.name}', {target.range[0]:g}..{target.range[1]:g}"
            shown = ", ".join(f"{value:g}" for value in sorted(set(numbers[outside]))[:3])
            raise_all(where, [f"{outside.sum()} labels are not {allowed}: {shown}"])
    return rows.assign(id=f"{source.name}:" + rows["id"], label=labels)


def _mistakes(source: Task, target: Task, extra: Extra) -> list[str]:
    """Why the source's labels cannot be converted as ``extra`` asks."""
    if "labels" in (source.kind, target.kind):
        same = (source.kind, source.classes) == (target.kind, target.classes) and not extra.labels and not extra.scale
        return [] if same else ["rows with several labels need a source of the same classes, in the same order"]
    if extra.labels:
        keys = {as_label(key) or key for key, _ in extra.labels}
        if source.kind == "classes" and keys == {str(number) for number in range(source.outputs)}:
            return []
        return [f"labels: write one for each of its classes 0..{source.outputs - 1}; for scores write scale = [a, b]"]
    if extra.scale is not None:
        if source.kind == target.kind == "score":
            return []
        return ["scale: is for scores of both tasks: for classes write labels = { 0 = ..., 1 = ... }"]
    if (source.kind, source.classes, source.range) == (target.kind, target.classes, target.range):
        return []
    return [
        f"its labels are {_description(source)}, and those of '{target.name}' {_description(target)}: say what they are"
        " there, labels = { 0 = ..., 1 = ... } for classes and scale = [a, b] for scores, or leave it out"
    ]


def _description(task: Task) -> str:
    if task.range is not None:
        return f"scores {task.range[0]:g} to {task.range[1]:g}"
    return f"{task.outputs} classes ({', '.join(task.classes)})"
