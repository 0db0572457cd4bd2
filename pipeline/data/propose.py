"""Propose a task for a table: its text and label columns, kind, classes and metric."""

import re
import shlex
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd

from pipeline.data.canonical import no_text_in
from pipeline.data.cells import as_label, as_number, as_text, is_nested
from pipeline.data.columns import Columns, find_columns, is_called_class, mean_words, names_rows
from pipeline.data.labels import are_numbers, check_classes, class_order, did_you_mean, kind_of, scores_of
from pipeline.data.overlap import text_key
from pipeline.data.texts import count_words, is_broken
from pipeline.stats.names import Kind, Metric
from pipeline.system.errors import PipelineError, shortened

_UNBALANCED = 2.0
_RANGE_SHARE = 0.2
_MOST_CONTRADICTING = 0.25
"""Of all rows: where more contradict each other, a text column that was guessed is taken for a wrong one."""
_FAR_MORE = 2.0
"""A column that is not used is named where its texts have so many times the words of those that are."""


@dataclass(frozen=True)
class Proposal:
    """A task for a table, and the rows of the table that can be used."""

    columns: Columns
    kind: Kind
    metric: Metric
    rows: pd.DataFrame
    """``id``, ``text_a``, ``text_b`` (pairs only), ``label``: the class's name, or a score (float64)."""
    classes: tuple[str, ...] = ()
    range: tuple[float, float] | None = None
    max_length: int = 128
    dropped: dict[str, list[int]] = field(default_factory=dict)
    """Which rows of the file are left out, from 1, by reason."""
    repeated: int = 0
    """Rows whose text stood in an earlier row."""
    hints: tuple[str, ...] = ()
    """Labels that may be misspelt."""
    remarks: tuple[str, ...] = ()
    """What of the table was not taken as its author may have meant it."""

    @property
    def counts(self) -> dict[str, int]:
        """Rows by class, the most frequent first; of classes that are all numbers, the lowest first."""
        counts = Counter(self.rows["label"]) if self.kind == "classes" else Counter()
        names = self.classes if are_numbers(self.classes) else [name for name, _ in counts.most_common()]
        return {name: counts[name] for name in names}

    @property
    def labels(self) -> dict[str, int]:
        """Raw label -> class, for the names that are numbers and could be read as the number of another class."""
        numbers = {name: number for number, name in enumerate(self.classes)}
        return numbers if any(not np.isnan(as_number(name)) for name in self.classes) else {}


def propose(
    table: pd.DataFrame, where: str, *, text: Sequence[str] = (), label: str | None = None, kind: Kind | None = None
) -> Proposal:
    """The task of a raw ``table``; what is given in ``text``, ``label`` and ``kind`` is taken as it is.

    Left out, and counted: rows with a blank text or label, and rows of equal text, but for case and white space, whose
    labels contradict each other: other classes, or scores further apart than a fifth of the range.

    Raises:
        PipelineError: it names ``where``: the columns cannot be found, the rows have several labels each, the labels
            are neither classes nor scores, or too many rows contradict each other by a text that was not given.
    """
    table = table.reset_index(drop=True)
    columns = find_columns(table, where, text, label)
    rows, dropped = _complete_rows(table, columns, where)
    where_label = f"{where}: column '{columns.label}'"
    if rows["label"].nunique() < 2:
        raise PipelineError(f"{where_label} has fewer than two different labels in {len(rows)} rows with a text")
    kind = kind or kind_of(rows["label"], where_label, is_called_class(columns.label))
    hints: tuple[str, ...] = ()
    if kind == "score":
        rows["label"] = scores_of(rows, where_label)
    else:
        check_classes(rows["label"], where_label)
        hints = tuple(did_you_mean(rows))
    contradicting = _contradicting(rows["label"], _keys(rows, _spelling), kind)
    if not text and contradicting.mean() > _MOST_CONTRADICTING:
        raise PipelineError(
            f"{where}: {contradicting.sum():,} of {len(rows):,} rows have the text of another row"
            f" ({' and '.join(map(repr, columns.text))}) and another label: for a task on pairs name both columns,"
            " --text A,B; else name the text column with --text"
        )
    dropped["with the text of another row and another label"] = _numbers(rows, contradicting)
    rows = rows[~contradicting].reset_index(drop=True)
    if rows["label"].nunique() < 2:
        texts = " and ".join(map(repr, columns.text))
        raise PipelineError(
            f"{where_label}: fewer than two labels are left without rows that contradict each other: equal texts in"
            f" {texts} with other labels (--text names another column)"
        )
    return Proposal(
        columns=columns,
        kind=kind,
        metric=_metric(kind, rows["label"]),
        rows=rows,
        classes=tuple(sorted(set(rows["label"]), key=class_order)) if kind == "classes" else (),
        range=(float(rows["label"].min()), float(rows["label"].max())) if kind == "score" else None,
        max_length=_max_length(rows),
        dropped={reason: numbers for reason, numbers in dropped.items() if numbers},
        repeated=int(pd.Series(_keys(rows, text_key)).duplicated().sum()),
        hints=hints,
        remarks=tuple(_remarks(table, columns, kind, rows)),
    )


def is_unbalanced(labels: pd.Series) -> bool:
    """Whether the largest class has more than twice the rows of the others' mean (for two classes, over 2/3).

    Accuracy then rewards a model that knows nothing but that class, so macro-F1 is proposed.
    """
    counts = labels.value_counts().to_numpy()
    return bool(counts[0] > _UNBALANCED * counts[1:].mean())


def _metric(kind: Kind, labels: pd.Series) -> Metric:
    if kind == "score":
        return "pearson"
    return "macro-f1" if is_unbalanced(labels) else "accuracy"


def _complete_rows(table: pd.DataFrame, columns: Columns, where: str) -> tuple[pd.DataFrame, dict[str, list[int]]]:
    """The rows with texts and a label, which is the name of a class, and which others there are by reason.

    Their index counts the rows of the file from 0.
    """
    raw = table[columns.label].tolist()
    if nested := list(filter(is_nested, raw)):
        if isinstance(nested[0], dict):
            raise PipelineError(
                f"{where}: column '{columns.label}' holds objects, such as {shortened(nested[0])}: put the label into a"
                " column of its own, or name another column with --label"
            )
        raise PipelineError(
            f"{where}: column '{columns.label}' holds lists, such as {shortened(nested[0])}: rows with several labels"
            " are not supported; make a table for each label, with yes or no"
        )
    names = pd.Series([as_label(value) for value in raw], dtype=object)
    texts = [_texts(table[column], where, column) for column in columns.text]
    lacks_text = np.logical_or.reduce([[not text.strip() for text in column] for column in texts])
    lacks_label = names.isna().to_numpy()
    rows = pd.DataFrame({"id": _ids(table), **dict(zip(("text_a", "text_b"), texts, strict=False)), "label": names})
    dropped = {
        "without text": _numbers(rows, lacks_text),
        "without a label": _numbers(rows, lacks_label & ~lacks_text),
    }
    return rows[~(lacks_text | lacks_label)], dropped


def _numbers(rows: pd.DataFrame, mask: np.ndarray) -> list[int]:
    """Which rows of the file those of a ``mask`` (n,) over ``rows`` are, from 1, as messages count them."""
    return (rows.index[mask] + 1).tolist()


def _texts(column: pd.Series, where: str, name: str) -> list[str]:
    is_no_text = no_text_in(column)
    for row, value in enumerate(column, start=1):
        if is_no_text(value) or is_broken(value):
            raise PipelineError(f"{where}: column '{name}', row {row} is not a text: {shortened(value)}")
    return [as_text(value) for value in column]


def _ids(table: pd.DataFrame) -> list[str]:
    """The column ``id`` if it names each row, else the number of the row in the file, from 0 as for predictions."""
    column = _id_column(table)
    if column is None or _why_no_id(table[column]) is not None:
        return list(map(str, range(len(table))))
    return [str(value) for value in table[column]]


def _id_column(table: pd.DataFrame) -> str | None:
    return next((column for column in ("id", *table.columns) if column in table and names_rows(column)), None)


def _why_no_id(column: pd.Series) -> str | None:
    """Why the values of a column cannot name the rows, of which the first is row 1; None if they can."""
    first: dict[str, int] = {}
    for row, value in enumerate(column, start=1):
        name = str(value).strip() if isinstance(value, str | int | np.integer) else ""
        if not name or is_broken(name):
            return f"row {row} has none that is a text or a whole number"
        if name in first:
            return f"rows {first[name]} and {row} have the same, {shortened(name)}"
        first[name] = row
    return None


def _remarks(table: pd.DataFrame, columns: Columns, kind: Kind, rows: pd.DataFrame) -> Iterator[str]:
    """What was not taken as its author may have meant it, and the option that does."""
    column = _id_column(table)
    if column is not None and (why := _why_no_id(table[column])) is not None:
        yield f"column {column!r} does not name the rows: {why}. Rows are numbered from 0 instead"
    words = {str(name): mean_words(values) for name, values in table.items()}
    longest = max(columns.unused, key=lambda name: words[name], default=None)
    if longest is not None and words[longest] > _FAR_MORE * max(words[name] for name in columns.text):
        yield f"column {longest!r} holds longer texts and is not used: --text {shlex.quote(longest)} takes it"
    names = sorted(set(rows["label"]), key=class_order) if kind == "classes" else []
    numbers = {as_number(name): name for name in names}  # 07 and 7 are one score
    if len(numbers) > 2 and are_numbers(names):
        near, other = min(pairwise(numbers), key=lambda pair: pair[1] - pair[0])
        yield (
            f"the {len(names)} classes are numbers: --kind score reads them as scores, so that {numbers[near]} is near"
            f" {numbers[other]}"
        )


def _spelling(text: str) -> str:
    """``text`` without case, in one Unicode form, and with single spaces.

    Unlike :func:`text_key` it keeps whatever may turn a label: emoticons, the vowel signs of Hindi, C++ and C#.
    """
    return " ".join(unicodedata.normalize("NFC", text).casefold().split())


def _keys(rows: pd.DataFrame, key: Callable[[str], str]) -> np.ndarray:
    """A number a row (n,), equal for texts of equal ``key``.

    Unlike :func:`row_keys`, a pair in the other order has another.
    """
    columns = [rows[column].map(key) for column in ("text_a", "text_b") if column in rows]
    return pd.factorize(pd.Series(list(zip(*columns, strict=True)), dtype=object))[0]


def _contradicting(labels: pd.Series, keys: np.ndarray, kind: Kind) -> np.ndarray:
    """Which rows (bool) have a text that stands in the table with another label too."""
    groups = labels.groupby(keys)
    if kind == "classes":
        return (groups.transform("nunique") > 1).to_numpy()
    spread = groups.transform("max") - groups.transform("min")
    return (spread > _RANGE_SHARE * np.ptp(labels)).to_numpy()


def _max_length(rows: pd.DataFrame) -> int:
    """128, 256 or 512 tokens: the first that holds 95 % of the rows, at a guess of 1.4 tokens a word.

    Of Chinese, Japanese, Thai and the like, a character counts as a word.
    """
    texts = [rows[column] for column in ("text_a", "text_b") if column in rows]
    words = [sum(map(count_words, row)) for row in zip(*texts, strict=True)]
    tokens = 1.4 * float(np.quantile(words, 0.95)) + 3
    return next((length for length in (128, 256) if tokens <= length), 512)


def name_of(file: Path) -> str:
    """A name for the task of ``file``, from its stem; it may still be no valid name."""
    return re.sub(r"[^a-z0-9_-]+", "-", file.stem.casefold()).strip("-_")[:32]
