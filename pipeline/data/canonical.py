"""Canonical, checked rows of a task: the form that every table, file and data set is converted to before use.

Canonical columns: ``id`` (str), ``text_a`` (str), ``text_b`` (str, pairs only), ``label`` (int64 class, float64 score
or str, a label set; absent in unlabelled rows).
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Literal

import numpy as np
import pandas as pd
from pandas.api.extensions import ExtensionArray

from pipeline.data.cells import (
    BROKEN,
    as_label,
    as_number,
    is_blank,
    is_broken,
    is_nested,
    name_among,
    nearest_class,
    number_of_class,
    parts_of,
)
from pipeline.data.labels import as_sets, same_form
from pipeline.data.tasks import Files, Hub, Source, Task
from pipeline.system.errors import PipelineError, raise_all, shortened

Unknown = Literal["error", "ignore"]
"""What becomes of rows with a label that is none of the task's classes."""
_SIGNED = re.compile(r"\+[0-9]+")
_FLAGS = {"0": False, "1": True, "false": False, "true": True}
_PART = 2**14  # values that are Python objects at once


def canonical_rows(
    task: Task,
    table: pd.DataFrame,
    where: str,
    *,
    source: Source = Files(),
    labelled: bool = True,
    leave_out_blank: bool = False,
    is_scored: bool = False,
    unknown: Unknown | None = None,
) -> pd.DataFrame:
    """Convert a raw table, called ``where`` in messages, to canonical columns, or report all that is wrong at once.

    ``source`` names the raw columns (those of a Hub data set differ) and maps raw labels. ``leave_out_blank`` drops
    rows with a blank text or, in a labelled table, a blank label, instead of reporting them; the others keep their
    index. Messages number rows by the index of ``table``. If the table has no ids, the rows that ``source`` keeps are
    numbered from 0. ``is_scored`` is for rows that a trained model is scored on: all may have one label, which would be
    useless for training, and scores beyond the task's range are kept. With ``unknown`` "ignore", what is none of the
    task's classes is class -1, not a mistake; with "error", a message names that option.
    """
    text_columns = source.text if isinstance(source, Hub) else task.text
    label_column = source.label if isinstance(source, Hub) else task.label
    problems: list[str] = []
    if labelled and name_among(label_column, table.columns) is None and has_labels(task, table.columns):
        table = table.assign(**{label_column: flagged(table, task.classes, problems)})
    read = [*text_columns, *([label_column] if labelled else [])]
    found = {column: name_among(column, table.columns) for column in read}
    if missing := [column for column, own in found.items() if own is None]:
        names, known = (", ".join(map(repr, columns)) for columns in (missing, table.columns))
        raise PipelineError(f"{where}: column {names} is missing; the columns are {known}")
    table = table.rename(columns={own: column for column, own in found.items()})
    if source.drop_blank:
        table = table[~np.logical_or.reduce([_which(table[column], is_blank) for column in text_columns])]
    if source.drop_labels and labelled:
        dropped = {_label_keys(label)[0] for label in source.drop_labels}
        table = table[_which(table[label_column], lambda value: dropped.isdisjoint(_label_keys(value)))]
    if table.empty:
        raise PipelineError(f"{where}: no rows")
    left_out = np.zeros(len(table), dtype=bool)
    # A blank among labels is a row without any.
    for column in (text_columns if task.kind == "labels" else read) if leave_out_blank else ():
        left_out |= _which(table[column], is_blank)
    rows = pd.DataFrame({"id": _ids(table, problems)})
    for target, column in zip(("text_a", "text_b"), text_columns, strict=False):
        rows[target] = text_column(table[column], column, problems, may_be_blank=leave_out_blank)
    if labelled:
        rows["label"] = _labels(task, table[label_column], label_column, source, left_out, is_scored, unknown, problems)
        labels = rows["label"][~left_out]
        if labels.empty:
            problems.append("no row has both a text and a label")
        elif not problems and not is_scored and labels.nunique() < 2:
            only = shortened(task.shown(labels.iloc[0]))
            problems.append(f"column '{label_column}': a single label: all {len(labels)} rows have {only}")
    raise_all(where, problems)
    return rows.set_axis(table.index)[~left_out] if leave_out_blank else rows


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


def has_labels(task: Task, columns: Sequence[str] | pd.Index) -> bool:
    """Whether a table has the column of the task's label, or for kind ``labels`` one of 0 and 1 for every class."""
    wanted = task.classes if task.kind == "labels" and name_among(task.label, columns) is None else (task.label,)
    return all(name_among(name, columns) is not None for name in wanted)


def flagged(table: pd.DataFrame, columns: Sequence[str], problems: list[str]) -> pd.Series:
    """For every row, the numbers of the ``columns`` that have 1 there, not 0."""
    rows: list[list[int]] = [[] for _ in range(len(table))]
    for number, name in enumerate(columns):
        values = table[str(name_among(name, table.columns))]
        flags = [_FLAGS.get(as_label(value) or "") for value in _values(values)]
        _report(problems, f"column '{name}': neither 0 nor 1", values, np.array([flag is None for flag in flags]))
        for row in np.flatnonzero(np.array(flags, dtype=bool)):
            rows[row].append(number)
    return pd.Series(rows, table.index, dtype=object)


def text_column(
    values: pd.Series, column: str, problems: list[str], *, may_be_blank: bool
) -> pd.Series | ExtensionArray:
    """The texts (n,); values that are no text are added to ``problems``."""
    before = len(problems)
    if not may_be_blank:
        _report(problems, f"column '{column}': empty or null text", values, _which(values, is_blank))
    # In a column without any text no cell counts as one.
    has_texts = any(isinstance(value, str) and not is_blank(value) for value in _values(values))
    is_bad = _is_no_text if has_texts else lambda value: not is_blank(value)
    _report(problems, f"column '{column}': not text", values, _which(values, is_bad))
    _report(problems, f"column '{column}': {BROKEN}", values, _which(values, is_broken))
    if isinstance(values.dtype, pd.StringDtype) and len(problems) == before and not may_be_blank:
        return values.array
    # Replace the values reported above: pandas cannot hold an unpaired surrogate.
    return _texts("" if is_blank(one) or _is_no_text(one) or is_broken(one) else str(one) for one in _values(values))


def _is_no_text(value: Any) -> bool:
    """Whether a cell cannot be read as a text, even in a column of texts.

    A spreadsheet turns 404 into a number, true into a boolean and 3-4 into a date: their texts are Python's.
    """
    return is_nested(value) or isinstance(value, bytes)


def _values(column: pd.Series) -> Iterator[Any]:
    """Its values as Python objects, a part at a time: all at once would take ten times the column's memory."""
    for first in range(0, len(column), _PART):
        yield from column.iloc[first : first + _PART].tolist()


def _which(column: pd.Series, is_bad: Callable[[Any], bool]) -> np.ndarray:
    """Mask of the bad values, bool (n,)."""
    return np.fromiter(map(is_bad, _values(column)), bool, len(column))


def _texts(values: Iterable[str]) -> pd.Series:
    """``pd.Series(list(values))``, built a part at a time."""
    each = iter(values)
    parts = iter(lambda: list(islice(each, _PART)), [])
    return pd.concat([pd.Series(part) for part in parts], ignore_index=True)


def _report(problems: list[str], what: str, values: pd.Series, bad: np.ndarray, known: Sequence[str] = ()) -> None:
    """Add a line to ``problems``: how many values are ``bad`` (n,), and the first three with their rows.

    Args:
        values: (n,), indexed by number of row.
        known: names that a bad value may be a misspelling of.
    """
    places = np.flatnonzero(bad)
    if len(places):
        first = values.iloc[places[:3]]
        shown = ", ".join(f"row {row}: {shortened(value)}{nearest_class(value, known)}" for row, value in first.items())
        problems.append(f"{what} ({len(places)} in all): {shown}")


def _ids(table: pd.DataFrame, problems: list[str]) -> pd.Series:
    if "id" not in table.columns:
        return _texts(map(str, range(len(table))))
    values = table["id"]
    _report(problems, "column 'id': empty", values, _which(values, is_blank))
    _report(problems, f"column 'id': {BROKEN}", values, _which(values, is_broken))
    _report(problems, "column 'id': neither text nor a number", values, _which(values, is_nested))
    ids = _texts(shortened(value) if is_nested(value) or is_broken(value) else str(value) for value in _values(values))
    if ids.nunique() < len(ids):
        _report(problems, "column 'id': duplicate ids", ids.set_axis(values.index), ids.duplicated().to_numpy())
    return ids


def _labels(
    task: Task,
    values: pd.Series,
    column: str,
    source: Source,
    left_out: np.ndarray,
    is_scored: bool,
    unknown: Unknown | None,
    problems: list[str],
) -> np.ndarray:
    """The labels (n,); values that are no label are added to ``problems``, unless ``left_out`` (n,) marks the row."""
    if unclear := _unclear_labels(task, source):
        problems.append(unclear)
        return np.zeros(len(values))
    read, unreadable = _reader(task, source)
    known = list(source.labels) or task.classes
    if task.kind == "labels":
        cells = enumerate(parts_of(value, source.separator) for value in _values(values))
        row_of, parts = [*zip(*((row, part) for row, parts in cells for part in parts), strict=True)] or ((), ())
        classes, unread = as_labels(task, np.fromiter(map(read, parts), float, len(parts)))
        placed = pd.Series(parts, values.index[[*row_of]], dtype=object)
        _report(problems, f"column '{column}': {unreadable}", placed, unread, known)
        held = np.zeros((len(values), task.outputs), dtype=bool)
        held[np.array(row_of, int)[~unread], classes[~unread]] = True
        return as_sets(held)
    numbers = np.fromiter(map(read, _values(values)), float, len(values))
    if source.scale is not None:
        with np.errstate(over="ignore"):  # infinite is out of range
            numbers = source.scale[0] * numbers + source.scale[1]
    numbers[left_out] = 0
    unread, (labels, outside) = np.isnan(numbers), as_labels(task, numbers)
    allowed = f"label out of range 0..{task.outputs - 1} or not whole"
    if unknown and task.kind == "classes":
        if unknown == "ignore":
            return np.where(outside, -1, labels)
        unreadable += " (--unknown ignore leaves such rows out)"
    if task.range is not None:
        allowed = "score out of range {:g}..{:g} in the task's file".format(*task.range)
        labels, outside = (numbers, np.isinf(numbers)) if is_scored else (labels, outside)
    _report(problems, f"column '{column}': {unreadable}", values, unread, known)
    placed = pd.Series(numbers, values.index)
    _report(problems, f"column '{column}': {allowed}", placed, outside & ~unread & ~left_out)
    return labels


def _unclear_labels(task: Task, source: Source) -> str | None:
    """Why a label of ``source`` could mean either of two classes, and what to do; None if all are clear.

    A task described by a manifest reads no labels, so its classes may have any names.
    """
    section = "hub" if isinstance(source, Hub) else "files"
    keys: dict[str, str] = {}
    for raw in source.labels:
        other = keys.setdefault(_label_keys(raw)[0], raw)
        if source.labels[other] != source.labels[raw]:
            return f"{section}.labels: {other!r} and {raw!r} are the same label: keep one of them"
    for own, name in enumerate(() if source.labels else task.classes):
        number = number_of_class(name)
        if not np.isnan(number) and number != own:
            return (
                f"classes: {shortened(name)} is a number and could mean class {number:g}: write labels ="
                f" {{ {json.dumps(name, ensure_ascii=False)} = {own}, ... }} under [{section}], with what the rows have"
            )
    return None


def _reader(task: Task, source: Source) -> tuple[Callable[[Any], float], str]:
    """A function from raw label to number, NaN if it is not a label, and the message for such a value."""
    if source.labels:
        keys = [(_label_keys(raw), label) for raw, label in source.labels.items()]
        labels = {other: label for (_, *others), label in keys for other in others}
        labels |= {first: label for (first, *_), label in keys}
        return lambda value: _first_of(labels, value), f"label not in {list(source.labels)}"
    read_number = as_number if task.kind == "score" else number_of_class
    # Names that are numbers are read as numbers.
    names = {name: number for number, name in enumerate(task.classes) if np.isnan(number_of_class(name))}
    if not names:
        return read_number, "label is not a number"
    classes = {_label_keys(name)[0]: number for name, number in names.items()}

    def read(value: Any) -> float:
        # A blank is no class, not even one that is called None.
        number = np.nan if is_blank(value) else _first_of(classes, value)
        return read_number(value) if np.isnan(number) else number

    return read, f"label is neither a number nor in {shortened(list(classes), 300)}"


def _first_of(labels: Mapping[str, float], value: Any) -> float:
    """The label in ``labels`` that a raw value stands for; NaN if none."""
    return next((labels[key] for key in _label_keys(value) if key in labels), float("nan"))


def _label_keys(value: Any) -> tuple[str, ...]:
    """The keys to look a raw label up by in a table of labels, in order; the first one found counts.

    A boolean, or a number with a plus sign, is looked up by name first, then as a number.
    """
    name = as_label(value)
    if name is None:
        return (same_form(str(value)),)
    if isinstance(value, bool | np.bool_):
        return name, str(int(value))
    return (name, name[1:]) if _SIGNED.fullmatch(name) else (name,)


def as_labels(task: Task, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """``numbers`` as labels of ``task``, int64 classes or float64 scores, and a mask of those that are invalid."""
    if task.range is None:
        outside = ~((numbers == np.floor(numbers)) & (numbers >= 0) & (numbers < task.outputs))
        return np.where(outside, 0, numbers).astype("int64"), outside
    low, high = task.range
    # A score rescaled in floating point may overshoot its end by rounding.
    slack = 1e-9 * (high - low)
    return numbers.clip(low, high), ~((numbers >= low - slack) & (numbers <= high + slack))
