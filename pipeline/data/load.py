"""Load a task's splits from files or the Hub into canonical, checked rows.

Canonical columns: ``id`` (str), ``text_a`` (str), ``text_b`` (str, pairs only), ``label`` (int64 class or float64
score; absent in unlabelled rows).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pipeline.data.cut import cut
from pipeline.data.overlap import first_overlap, overlapping_rows
from pipeline.data.sample import stratified
from pipeline.data.tables import SUFFIXES, other_delimiter, read_table
from pipeline.data.tasks import Files, Hub, Source, Split, Task, check_folder
from pipeline.system.errors import PipelineError, raise_all, shortened
from pipeline.system.reading import reading

_BROKEN = "half a surrogate pair, which no encoding can write"
_SURROGATE = re.compile("[\ud800-\udfff]")
_CODE = re.compile(r"\s*[+-]?(0[0-9]|[0-9]*_|[0-9]+[eE][0-9])")
_PART = 2**14  # values that are Python objects at once

# Holds out and samples dev rows, so that they are the same for every run, whatever its seed.
_DEV_SEED = 20240101


@dataclass(frozen=True)
class Added:
    """How many rows a source of extra data added, and how many were left out because their text is scored."""

    rows: int  # added to the training rows
    in_dev: int = 0  # left out: in the target's dev split
    in_test: int = 0  # left out: in the target's test texts, if these can be read
    in_other_dev: int = 0  # left out: in the dev split of another task that is scored
    in_train: int = 0  # of those added: also in the target's own training rows


@dataclass(frozen=True)
class TaskData:
    """The labelled rows of a run: it trains on some, chooses by others, and is scored on rows of a third kind."""

    train: pd.DataFrame
    dev: pd.DataFrame
    """Validation rows, which choose an epoch, an anchor, an adapter."""
    test: pd.DataFrame | None = None
    """Test rows; None where dev is scored itself."""
    # How many training rows are left out because their text is in a dev split, by that split's task.
    dropped: Mapping[str, int] = field(default_factory=dict)
    # Training rows of other tasks, which follow the task's own, by task.
    added: Mapping[str, Added] = field(default_factory=dict)
    whole: TaskData | None = field(default=None, repr=False)  # what this is a sample of

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
        """By kind of rows; ``test`` only where there are such rows."""
        return {"train": fingerprint(self.train), **self._held_out_fingerprint}

    @property
    def scored_fingerprint(self) -> str:
        return self._held_out_fingerprint["dev" if self.test is None else "test"]

    @cached_property
    def _held_out_fingerprint(self) -> dict[str, str]:
        # Samples for many seeds share these rows.
        if self.whole is not None and self.whole.dev is self.dev and self.whole.test is self.test:
            return self.whole._held_out_fingerprint
        found = {"dev": fingerprint(self.dev)}
        return found if self.test is None else {**found, "test": fingerprint(self.test)}

    @cached_property
    def dev_in_train(self) -> int:
        """Dev rows whose text is also in these training rows."""
        return int(overlapping_rows(self.train, self.dev)[1].sum())

    @cached_property
    def test_in_train(self) -> int:
        """Test rows whose text is also in these training rows."""
        return 0 if self.test is None else int(overlapping_rows(self.train, self.test)[1].sum())

    def without(self, held_out: Mapping[str, pd.DataFrame]) -> TaskData:
        """Drop the training rows whose text is in ``held_out``: by task, the validation and test rows there.

        A row that stands in several counts for the first in :attr:`dropped`.

        Raises:
            PipelineError: less than two classes stay.
        """
        found = first_overlap(self.train, list(held_out.values()))
        if (found < 0).all():
            return self
        counts = np.bincount(found[found >= 0], minlength=len(held_out))
        dropped = {name: int(count) for name, count in zip(held_out, counts, strict=True) if count}
        train = self.train[found < 0].reset_index(drop=True)
        if train["label"].nunique() < 2:
            names = ", ".join(f"'{name}'" for name in dropped)
            raise PipelineError(
                f"without the rows that stand in dev or test of {names}, {len(train)} training rows are left, too few"
                " to train on: give rows that these do not have"
            )
        return replace(self, train=train, dropped={**self.dropped, **dropped})

    def sample(
        self, task: Task, limit: int | None, seed: int, dev_limit: int | None, test_limit: int | None = None
    ) -> TaskData:
        """A stratified sample: ``limit`` rows of train drawn by ``seed``; ``dev_limit`` of dev and ``test_limit`` of
        test, always the same."""

        def part(rows: pd.DataFrame, size: int | None, seed: int, option: str) -> pd.DataFrame:
            if size is None or size >= len(rows):
                return rows
            chosen = rows.iloc[stratified(rows["label"], size, seed)].reset_index(drop=True)
            if chosen["label"].nunique() < 2:
                raise PipelineError(f"{option} {size} leaves a single class of task '{task.name}': raise it")
            return chosen

        train, dev = part(self.train, limit, seed, "--limit"), part(self.dev, dev_limit, _DEV_SEED, "--dev-limit")
        test = None if self.test is None else part(self.test, test_limit, _DEV_SEED, "--dev-limit")
        return replace(self, train=train, dev=dev, test=test, whole=self)

    def permuted(self, seed: int) -> TaskData:
        """The same with the labels of the training rows in random order: nothing to learn but how often each occurs.

        What is trained on them is a control for what real labels teach (Zhang et al. 2017; Hewitt & Liang 2019).
        """
        order = np.random.default_rng(seed).permutation(len(self.train))
        train = self.train.assign(label=self.train["label"].to_numpy()[order])
        return replace(self, train=train, whole=self)

    def halved(self, task: Task, seed: int) -> TaskData:
        """One half of dev chooses and the other scores; see :func:`pipeline.data.cut.cut`."""
        dev, test = _parts(self.dev, 0.5, seed, f"dev of task '{task.name}'")
        return replace(self, dev=dev, test=test)

    def holding_out(self, task: Task, size: int, seed: int) -> TaskData:
        """About ``size`` training rows, at most half of them, score instead of being trained on; all of dev chooses.

        They share no text with the rows that stay. Those that stand in dev too are left out.

        Raises:
            PipelineError: too few rows can be held out.
        """
        share = min(size / len(self.train), 0.5)
        held_out, train = _parts(self.train, share, seed, f"training rows of task '{task.name}'")
        in_dev, _ = overlapping_rows(held_out, self.dev)
        test = held_out[~in_dev].reset_index(drop=True)
        if len(test) < len(held_out) / 2 or test["label"].nunique() < 2:
            raise PipelineError(
                f"task '{task.name}': {in_dev.sum()} of {len(held_out)} training rows to be held out stand in dev too,"
                " and those that are left cannot score a run: say otherwise for this task under scoring.tasks"
            )
        return replace(self, train=train, test=test)

    def choosing_in_train(self, task: Task, share: float, seed: int) -> TaskData:
        """A ``share`` of these training rows chooses instead of being trained on, and all of dev scores.

        What a person with few labelled rows can do: true few-shot learning (Perez et al. 2021).
        """
        dev, train = _parts(self.train, share, seed, f"training rows of task '{task.name}'")
        return replace(self, train=train, dev=dev, test=self.dev)


def _parts(rows: pd.DataFrame, share: float, seed: int, what: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    chosen = cut(rows, share, seed, what)
    return rows[chosen].reset_index(drop=True), rows[~chosen].reset_index(drop=True)


def load_all_rows(task: Task, data: Path | None, *, drop_overlap: bool = False, test: bool = False) -> TaskData:
    """Train and dev rows of ``task``, and with ``test`` those of its labelled test split, checked.

    Raises:
        PipelineError: it names file, row and value.
    """
    source: Source = task.files if data is not None else _hub_of(task)
    if source.dev_fraction is not None:
        rows = load_split(task, data, "train")
        dev_size = max(1, round(len(rows) * source.dev_fraction))
        chosen = stratified(rows["label"], dev_size, _DEV_SEED)
        train, dev = rows.drop(chosen).reset_index(drop=True), rows.iloc[chosen].reset_index(drop=True)
        if min(train["label"].nunique(), dev["label"].nunique()) < 2:
            raise PipelineError(
                f"task '{task.name}': dev_fraction {source.dev_fraction} of {len(rows)} rows leaves {len(train)} to"
                f" train on and {len(dev)} for dev, and one of the two has a single label: give more rows, another"
                " dev_fraction, or a dev split"
            )
    else:
        train, dev = load_split(task, data, "train"), load_split(task, data, "dev")
    loaded = TaskData(train, dev, load_split(task, data, "test") if test else None)
    return loaded.without({task.name: loaded.held_out}) if drop_overlap else loaded


def load_split(task: Task, data: Path | None, split: Split) -> pd.DataFrame:
    """One labelled split in canonical form, checked."""
    if data is None:
        return _hub_rows(_hub_of(task), task, split, labelled=True)
    stem = getattr(task.files, split)
    folder, files = _files_of(task, data, stem)
    if not files:
        raise PipelineError(f"{folder}: split '{split}' is missing: no {stem}{{{','.join(SUFFIXES)}}}")
    if len(files) > 1:
        names = ", ".join(file.name for file in files)
        raise PipelineError(f"{folder}: split '{split}' is ambiguous: {names}: keep one")
    return canonical_rows(task, read_table(files[0]), str(files[0]), source=task.files)


def read_test_texts(task: Task, data: Path | None) -> pd.DataFrame | None:
    """The texts of the test split in canonical form, with or without labels; None where there are none to read.

    Files beside ``train`` and ``dev``: ``test``, or ``test_unlabelled`` as some releases publish it.
    """
    if data is None:
        hub = _hub_of(task)
        return _hub_rows(hub, task, "test", labelled=False) if "test" in hub.splits else None
    _, files = _files_of(task, data, task.files.test, f"{task.files.test}_unlabelled")
    tables = [canonical_rows(task, read_table(file), str(file), source=task.files, labelled=False) for file in files]
    return pd.concat(tables, ignore_index=True) if tables else None


def canonical_rows(
    task: Task,
    table: pd.DataFrame,
    where: str,
    *,
    source: Source = Files(),
    labelled: bool = True,
    leave_out_blank: bool = False,
) -> pd.DataFrame:
    """Bring a raw table, called ``where``, to canonical columns, or report everything that is wrong with it at once.

    ``source`` names the raw columns (a Hub data set has its own) and maps raw labels. With ``leave_out_blank`` a row
    with a blank text is no mistake but left out: the others keep their numbers in the index.
    """
    text_columns = source.text if isinstance(source, Hub) else task.text
    label_column = source.label if isinstance(source, Hub) else task.label
    needed = [*text_columns, *([label_column] if labelled else [])]
    missing = [column for column in needed if column not in table.columns]
    if missing:
        delimiter = other_delimiter(table.columns)
        raise PipelineError(
            f"{where}: column {', '.join(map(repr, missing))} is missing; the columns are"
            f" {', '.join(map(repr, table.columns))}{f': {delimiter}' if delimiter else ''}"
        )
    if source.drop_blank:
        kept = [not any(map(is_blank, texts)) for texts in zip(*(table[c] for c in text_columns), strict=True)]
        table = table[kept].reset_index(drop=True)
    if source.drop_labels and labelled:
        kept = [label_key(value) not in source.drop_labels for value in table[label_column]]
        table = table[kept].reset_index(drop=True)
    if table.empty:
        raise PipelineError(f"{where}: no rows")
    problems: list[str] = []
    rows = pd.DataFrame({"id": _ids(table, problems)})
    for target, column in zip(("text_a", "text_b"), text_columns, strict=False):
        values, before = table[column], len(problems)
        if not leave_out_blank:
            _report(problems, f"column '{column}': empty or null text", *_checked(values, is_blank))
        _report(problems, f"column '{column}': not text", *_checked(values, is_no_text))
        _report(problems, f"column '{column}': {_BROKEN}", *_checked(values, is_broken))
        if isinstance(values.dtype, pd.StringDtype) and len(problems) == before and not leave_out_blank:
            rows[target] = values.array
        else:  # replace what was reported: pandas cannot hold half a surrogate pair
            rows[target] = _texts(
                value if isinstance(value, str) and not is_broken(value) else "" for value in _values(values)
            )
    if labelled:
        rows["label"] = _labels(task, table[label_column], label_column, source, problems)
        if not problems and rows["label"].nunique() < 2:
            only = rows["label"].iloc[0]
            problems.append(f"column '{label_column}': a single class: all {len(rows)} rows have label {only}")
    raise_all(where, problems)
    if leave_out_blank:
        texts = rows.columns.intersection(["text_a", "text_b"])
        rows = rows[[not any(map(is_blank, row)) for row in rows[texts].itertuples(index=False)]]
    return rows


def fingerprint(rows: pd.DataFrame) -> str:
    """sha256 over the canonical rows in order: ids, texts and labels."""
    digest = hashlib.sha256()
    for column in sorted(rows.columns):
        digest.update(f"\0{column}\0".encode())
        for value in _values(rows[column]):
            encoded = str(value).encode()
            # The length makes ("ab", "c") and ("a", "bc") differ.
            digest.update(b"%d:%b" % (len(encoded), encoded))
    return digest.hexdigest()


def _hub_of(task: Task) -> Hub:
    if task.hub is None:
        raise PipelineError(f"task '{task.name}' has no Hub data set: give its folder with --data DIR")
    return task.hub


def _hub_rows(hub: Hub, task: Task, split: Split, labelled: bool) -> pd.DataFrame:
    """One split in canonical form, from the local cache when the Hub has been read before; no loading script is run."""
    if split not in hub.splits:
        raise PipelineError(f"{hub.dataset}: publishes no '{split}' split: give the files with --data DIR")
    # Here, not above: importing it takes half a second, and only tasks without files need it.
    import datasets

    datasets.disable_progress_bars()
    try:
        loaded = datasets.load_dataset(hub.dataset, hub.config, split=hub.splits[split], revision=hub.revision)
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise PipelineError(
            f"data set '{hub.dataset}' cannot be had from the Hub: connect, or give its files with --data DIR"
            f" ({reason})"
        ) from error
    table = loaded.to_pandas()
    # Without ids, use the row numbers ("idx") that some Hub data sets have.
    if "id" not in table.columns and "idx" in table.columns:
        table = table.rename(columns={"idx": "id"})
    return canonical_rows(task, table, f"{hub.dataset}:{hub.splits[split]}", source=hub, labelled=labelled)


def has_rows(task: Task, data: Path) -> bool:
    """Whether a table of one of the task's splits stands in ``data``.

    Raises:
        PipelineError: there is no such folder.
    """
    folder = _folder_of(task, data)
    return folder is not None and bool(_tables(folder, task.files.train, task.files.dev, task.files.test))


def has_test(task: Task, data: Path | None) -> bool:
    """Whether the task has a labelled test split in ``data``, or with None on the Hub."""
    if data is None:
        return "test" in _hub_of(task).splits
    return bool(_files_of(task, data, task.files.test)[1])


def _files_of(task: Task, data: Path, *stems: str) -> tuple[Path, list[Path]]:
    """The task's folder and its tables of these names, whether or not they are regular files (an error when read)."""
    folder = _folder_of(task, data)
    if folder is None:
        raise PipelineError(f"{data / task.name}: no such folder: --data must hold <task>/train and <task>/dev")
    return folder, _tables(folder, *stems)


def _folder_of(task: Task, data: Path) -> Path | None:
    check_folder(data)
    with reading(data):
        return next((data / name for name in (task.name, *task.aliases) if (data / name).is_dir()), None)


def _tables(folder: Path, *stems: str) -> list[Path]:
    with reading(folder):
        files = [folder / f"{stem}{suffix}" for stem in stems for suffix in SUFFIXES]
        return [file for file in files if file.exists()]


def is_blank(value: Any) -> bool:
    if isinstance(value, str):
        return not value.strip()
    return value is None or (isinstance(value, float) and np.isnan(value))


def is_broken(value: Any) -> bool:
    """Whether a text holds a lone surrogate, as JSON can spell them."""
    return isinstance(value, str) and not value.isascii() and _SURROGATE.search(value) is not None


def is_no_text(value: Any) -> bool:
    return not isinstance(value, str) and not is_blank(value)


def _values(column: pd.Series) -> Iterator[Any]:
    """Its values as Python's own, a part at a time: as many objects at once would take ten times its memory."""
    for first in range(0, len(column), _PART):
        yield from column.iloc[first : first + _PART].tolist()


def _checked(column: pd.Series, is_bad: Callable[[Any], bool]) -> tuple[Iterator[Any], Iterator[bool]]:
    """The values, and which of them are bad, as :func:`_report` takes them."""
    return _values(column), map(is_bad, _values(column))


def _texts(values: Iterable[str]) -> pd.Series:
    """The same as ``pd.Series(list(values))``, made a part at a time."""
    each = iter(values)
    parts = iter(lambda: list(islice(each, _PART)), [])
    return pd.concat([pd.Series(part) for part in parts], ignore_index=True)


def _report(problems: list[str], what: str, values: Iterable[Any], bad: Iterable[bool]) -> None:
    """Add a line to ``problems``: how many values are bad, and the first three with their rows, counted from 1."""
    found = [(row, value) for row, (value, is_bad) in enumerate(zip(values, bad, strict=True), start=1) if is_bad]
    if found:
        shown = ", ".join(f"row {row}: {shortened(value)}" for row, value in found[:3])
        problems.append(f"{what} ({len(found)} in all): {shown}")


def _ids(table: pd.DataFrame, problems: list[str]) -> pd.Series:
    if "id" not in table.columns:
        return _texts(map(str, range(len(table))))
    values = table["id"]
    _report(problems, "column 'id': empty", *_checked(values, is_blank))
    _report(problems, f"column 'id': {_BROKEN}", *_checked(values, is_broken))
    _report(problems, "column 'id': neither text nor a number", *_checked(values, _is_nested))
    ids = _texts(shortened(value) if _is_nested(value) or is_broken(value) else str(value) for value in _values(values))
    if ids.nunique() < len(ids):
        _report(problems, "column 'id': duplicate ids", ids, ids.duplicated())
    return ids


def _is_nested(value: Any) -> bool:
    return isinstance(value, (list, dict, np.ndarray))


def _labels(task: Task, values: pd.Series, column: str, source: Source, problems: list[str]) -> np.ndarray:
    mapping = {label_key(raw): label for raw, label in source.labels.items()} or _classes_by_name(task)
    read_number = as_number if task.kind == "score" else _number_of_class
    if source.labels:
        read = (mapping.get(label_key(value), np.nan) for value in _values(values))
        what = f"label not in {list(mapping)}"
    else:
        read = (
            read_number(value) if (label := mapping.get(label_key(value))) is None else label
            for value in _values(values)
        )
        what = (
            f"label is neither a number nor in {shortened(list(mapping), 300)}" if mapping else "label is not a number"
        )
    numbers = np.fromiter(read, float, len(values))
    if source.scale is not None:
        with np.errstate(over="ignore"):  # infinite is out of range
            numbers = source.scale[0] * numbers + source.scale[1]
    unread = np.isnan(numbers)
    _report(problems, f"column '{column}': {what}", _values(values), unread)
    labels, outside = as_labels(task, numbers)
    if task.range is None:
        allowed = f"label out of range 0..{task.outputs - 1} or not whole"
    else:
        allowed = "score out of range {:g}..{:g}".format(*task.range)
    _report(problems, f"column '{column}': {allowed}", map(float, numbers), outside & ~unread)
    return labels


def _classes_by_name(task: Task) -> dict[str, float]:
    """The numbers of the classes by name, but for names that are numbers themselves, which could mean either."""
    return {name: number for number, name in enumerate(task.classes) if np.isnan(_number_of_class(name))}


def as_labels(task: Task, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """``numbers`` as labels of ``task``, int64 classes or float64 scores, and which of them cannot be (bool)."""
    if task.range is None:
        outside = ~((numbers == np.floor(numbers)) & (numbers >= 0) & (numbers < task.outputs))
        return np.where(outside, 0, numbers).astype("int64"), outside
    low, high = task.range
    # A score rescaled in floating point may overshoot its end by rounding.
    slack = 1e-9 * (high - low)
    return numbers.clip(low, high), ~((numbers >= low - slack) & (numbers <= high + slack))


def label_key(value: Any) -> str:
    """A raw label as the key of a TOML table: 1, 1.0 and "1" are the same; a code such as "007" is a name."""
    number = _number_of_class(value)
    if not np.isnan(number) and number == int(number):
        return str(int(number))
    return value if isinstance(value, str) else shortened(value)


def is_code(value: Any) -> bool:
    """Whether ``value`` is a text such as 007, 1_0 or 1E5, which ``float`` reads as a number and its author does not.

    As a number it would be another code too: 007 and 07 are both 7.
    """
    return isinstance(value, str) and _CODE.match(value) is not None and not np.isnan(as_number(value))


def _number_of_class(value: Any) -> float:
    """The number that ``value`` is or spells as a label, else NaN; a code is a name."""
    return float("nan") if is_code(value) else as_number(value)


def as_number(value: Any) -> float:
    """The finite number that ``value`` is or spells, else NaN."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return float("nan")
    return number if np.isfinite(number) else float("nan")
