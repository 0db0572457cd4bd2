"""Propose a task for a table: its text and label columns, kind, classes and metric."""

import difflib
import json
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pipeline.data.canonical import as_number, is_code, label_key
from pipeline.data.overlap import text_key
from pipeline.data.texts import is_blank, is_broken
from pipeline.stats.names import Kind, Metric
from pipeline.system.errors import PipelineError, shortened

TEXT_NAMES = (
    "text", "sentence", "message", "review", "body", "content", "comment", "question", "utterance", "tweet", "query",
    "premise", "document", "description", "summary", "title", "subject",
)  # fmt: skip
CLASS_NAMES = (
    "label", "labels", "class", "category", "intent", "sentiment", "queue", "topic", "tag", "emotion", "polarity",
)  # fmt: skip
LABEL_NAMES = (*CLASS_NAMES, "target", "gold", "score", "rating", "stars", "similarity", "relatedness", "y")
_ROW_NAMES = ("id", "ids", "uuid", "key", "number", "num", "nr", "no", "index", "date", "datetime", "time", "timestamp")
_PAIRS = (("premise", "hypothesis"), ("question", "answer"), ("query", "passage"), ("question", "sentence"))
_PAIR_ENDS = (("1", "2"), ("a", "b"), ("_left", "_right"))

FEW = 10
"""A class with fewer training rows is hardly learned."""
_MOST_CLASSES = 500
_SCORES = 20
"""Whole numbers of more different values are scores, unless their column is called label or the like."""
_ALIKE = 0.8
"""Two labels are near each other from this ratio of :mod:`difflib` on."""
_MOST_COMPARED = 200_000  # pairs of labels
_UNBALANCED = 2.0
_RANGE_SHARE = 0.2
_LISTS = re.compile(r"[;|,]")
_NEARLY_ALL = 0.9
_THOUSANDS = re.compile(r"[+-]?[1-9][0-9]{0,2}(,[0-9]{3})+")


@dataclass(frozen=True)
class Columns:
    text: tuple[str, ...]
    label: str
    unused: tuple[str, ...]


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
    dropped: dict[str, int] = field(default_factory=dict)
    """Rows that are left out, by reason."""
    repeated: int = 0
    """Rows whose text stood in an earlier row."""
    hints: tuple[str, ...] = ()

    @property
    def counts(self) -> dict[str, int]:
        """Rows by class, the most frequent first."""
        return dict(Counter(self.rows["label"]).most_common()) if self.kind == "classes" else {}

    @property
    def labels(self) -> dict[str, int]:
        """Raw label -> class, for the names that are numbers and could be read as the number of another class."""
        numbers = {name: number for number, name in enumerate(self.classes)}
        return numbers if any(not np.isnan(as_number(name)) for name in self.classes) else {}


def propose(
    table: pd.DataFrame, where: str, *, text: Sequence[str] = (), label: str | None = None, kind: Kind | None = None
) -> Proposal:
    """The task of a raw ``table``; what is given in ``text``, ``label`` and ``kind`` is taken as it is.

    Left out, and counted: rows with a blank text or label, and rows of equal text whose labels contradict each other:
    other classes, or scores further apart than a fifth of the range.

    Raises:
        PipelineError: it names ``where``: the columns cannot be told, the rows have several labels each, or the labels
            are neither classes nor scores.
    """
    table = table.reset_index(drop=True)
    columns = find_columns(table, where, text, label)
    raw = table[columns.label].tolist()
    if nested := next((value for value in raw if isinstance(value, list | tuple | set | dict | np.ndarray)), None):
        raise PipelineError(
            f"{where}: column '{columns.label}' holds lists, such as {shortened(nested)}: rows of several labels"
            " are not supported; make a table for each label, with yes or no"
        )
    names = pd.Series([_name(value) for value in raw], dtype=object)
    texts = [_texts(table[column], where, column) for column in columns.text]
    blank_text = np.logical_or.reduce([[not text.strip() for text in column] for column in texts])
    blank_label = names.isna().to_numpy()
    dropped = {"without text": int(blank_text.sum()), "without a label": int((blank_label & ~blank_text).sum())}
    rows = pd.DataFrame({"id": _ids(table), **dict(zip(("text_a", "text_b"), texts, strict=False)), "label": names})
    rows = rows[~(blank_text | blank_label)].reset_index(drop=True)
    where_label = f"{where}: column '{columns.label}'"
    if rows["label"].nunique() < 2:
        raise PipelineError(f"{where_label} has fewer than two different labels in {len(rows)} rows with a text")
    kind = kind or _kind(rows["label"], columns.label, where_label)
    hints: tuple[str, ...] = ()
    if kind == "score":
        rows["label"] = _scores(rows, where_label)
    else:
        _check_classes(rows["label"], where_label)
        hints = tuple(did_you_mean(rows))
    keys = _keys(rows)
    contradicting = _contradicting(rows["label"], keys, kind)
    dropped["with the text of another row and another label"] = int(contradicting.sum())
    rows = rows[~contradicting].reset_index(drop=True)
    if rows["label"].nunique() < 2:
        raise PipelineError(f"{where_label}: fewer than two labels are left without rows that contradict each other")
    classes = tuple(sorted(set(rows["label"]), key=_class_order)) if kind == "classes" else ()
    bounds = (float(rows["label"].min()), float(rows["label"].max())) if kind == "score" else None
    return Proposal(
        columns=columns,
        kind=kind,
        metric="pearson" if kind == "score" else "macro-f1" if is_unbalanced(rows["label"]) else "accuracy",
        rows=rows,
        classes=classes,
        range=bounds,
        max_length=_max_length(rows),
        dropped={reason: count for reason, count in dropped.items() if count},
        repeated=int(pd.Series(keys[~contradicting]).duplicated().sum()),
        hints=hints,
    )


def is_unbalanced(labels: pd.Series) -> bool:
    """Whether the largest class has more than twice the rows of the others' mean (for two classes, over 2/3).

    Accuracy then rewards a model that knows nothing but that class, so macro-F1 is proposed.
    """
    counts = labels.value_counts().to_numpy()
    return bool(counts[0] > _UNBALANCED * counts[1:].mean())


def did_you_mean(rows: pd.DataFrame) -> list[str]:
    """A line for each label that occurs once and is spelt nearly like another, or differs from it in case alone."""
    counts = Counter(rows["label"])
    frequent = [name for name, count in counts.items() if count > 1]
    by_key: dict[str, list[str]] = {}
    for name in counts:
        by_key.setdefault(text_key(name), []).append(name)
    lines = []
    singles = [name for name, count in counts.items() if count == 1]
    bounded = len(singles) * len(frequent) <= _MOST_COMPARED
    for name, count in counts.items():
        same = [other for other in by_key[text_key(name)] if (counts[other], other) > (count, name)]
        near = difflib.get_close_matches(name, frequent, 1, _ALIKE) if count == 1 and bounded and not same else []
        if (same or near) and np.isnan(as_number(name)):
            row = rows["id"][rows["label"] == name].iloc[0]
            times = "once" if count == 1 else f"{count} times"
            lines.append(f"label {shortened(name)} occurs {times} (id {row}): did you mean {(same + near)[0]!r}?")
    return lines


def find_columns(table: pd.DataFrame, where: str, text: Sequence[str] = (), label: str | None = None) -> Columns:
    """The columns of texts and labels: as given, else by name, else by what they hold."""
    named = [*text, *([label] if label is not None else [])]
    if missing := [column for column in named if column not in table.columns]:
        raise PipelineError(
            f"{where}: no column {', '.join(map(repr, missing))}; the columns are {_listed(table.columns)}"
        )
    if len(text) > 2 or len(set(text)) < len(text):
        raise PipelineError(f"--text {','.join(text)}: name one column, or two different ones for pairs")
    if label in text:
        raise PipelineError(f"--label {label}: is also a text column")
    if "id" in named:
        raise PipelineError(f"{where}: column 'id' names the rows: rename it to use it as a text or a label")
    free = [column for column in table.columns if column != "id"]
    if broken := [column for column in free if is_broken(column)]:
        raise PipelineError(f"{where}: column {broken[0]!a}: half a surrogate pair: rename it")
    if label is None:
        label = _label_column(table[[c for c in free if c not in text]], where)
        _check_header(table, label, where)
    text = tuple(text) or _text_columns(table[[c for c in free if c != label]], where)
    return Columns(tuple(text), label, tuple(c for c in free if c != label and c not in text))


def _label_column(table: pd.DataFrame, where: str) -> str:
    if named := _by_name(list(table.columns), LABEL_NAMES):
        return named
    few = [column for column in table.columns if _has_few_values(table[column]) and not _names_rows(table[column])]
    flags = [column for column in few if {_name(value) for value in table[column]} - {None} <= {"0", "1"}]
    if len(flags) > 1 and len(flags) == len(few):
        raise PipelineError(
            f"{where}: columns {_listed(flags)} hold 0 or 1 each: rows of several labels are not"
            f" supported; make a task for each column, such as --label {flags[0]}"
        )
    if len(few) == 1:
        return str(few[0])
    candidates = few or list(table.columns)
    reason = "several columns could be the label" if few else "no column holds a few values that recur"
    odd = {column: _oddly_written(_names(table[column])) for column in candidates}
    hint = next((f" (column '{column}': {text})" for column, text in odd.items() if text), "")
    raise PipelineError(f"{where}: {reason}: name one with --label: {_listed(candidates)}{hint}")


def _check_header(table: pd.DataFrame, label: str, where: str) -> None:
    """Raise a :class:`PipelineError` if the name of the column ``label`` is a label, as in a file without a header."""
    name, is_number = _name(label), not np.isnan(as_number(label))
    names = _names(table[label])
    if name in names or (is_number and not any(np.isnan(as_number(other)) for other in names)):
        raise PipelineError(
            f"{where}: column '{label}' is called like a label: the first line must name the columns, and no other line"
            f" (if it does: --label {shlex.quote(label)})"
        )


def _text_columns(table: pd.DataFrame, where: str) -> tuple[str, ...]:
    words = {column: _mean_words(table[column]) for column in table.columns}
    candidates = [column for column in table.columns if words[column] > 0]
    if pair := _pair(candidates):
        return pair
    if named := _by_name(candidates, TEXT_NAMES):
        return (named,)
    if not candidates or words[longest := max(candidates, key=words.__getitem__)] < 2:
        raise PipelineError(
            f"{where}: no column holds texts of several words: name one with --text: {_listed(table.columns)}"
        )
    return (longest,)


def _listed(columns: Iterable[str]) -> str:
    text = ", ".join(map(repr, columns))
    return text if len(text) <= 300 else f"{text[:297]}..."


def _by_name(columns: Sequence[str], names: Sequence[str]) -> str | None:
    """The column with one of ``names``, or with one as its last word; those of the first name come first."""
    words = {column: _words(column) for column in columns}
    for matches in (lambda own, name: "_".join(own) == name, lambda own, name: len(name) > 1 and own[-1] == name):
        for name in names:
            for column in columns:
                if matches(words[column], name):
                    return column
    return None


def _words(column: str) -> list[str]:
    return re.split(r"[\W_]+", column.strip().casefold())


def _pair(columns: Sequence[str]) -> tuple[str, str] | None:
    """Two columns that are named as a pair, such as ``sentence1`` and ``sentence2``."""
    known = {column.casefold(): column for column in columns}
    for column in known:
        for first, second in _PAIR_ENDS:
            other = column.removesuffix(first) + second
            if column.endswith(first) and len(column) > len(first) and other in known:
                return known[column], known[other]
    return next(((known[a], known[b]) for a, b in _PAIRS if a in known and b in known), None)


def _has_few_values(column: pd.Series) -> bool:
    """Whether a column may be a label: it has two values or more that occur twice or more on average, and no prose."""
    names = _names(column)
    different = set(names)
    words = sum(len(name.split()) for name in different) / max(1, len(different))
    return 2 <= len(different) <= min(_MOST_CLASSES, len(names) / 2) and words < 6


def _names_rows(column: pd.Series) -> bool:
    """Whether a column is called an id, a number or a date, and its values are rarer than those of a class."""
    # A capital begins a word: customerId.
    words = _words(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", str(column.name)))
    names = _names(column)
    return words[-1] in _ROW_NAMES and len(names) < FEW * len(set(names))


def _names(column: pd.Series) -> list[str]:
    return [name for name in map(_name, column) if name is not None]


def _mean_words(column: pd.Series) -> float:
    """Words of a mean text; 0 if most values are no text."""
    texts = [value for value in column if isinstance(value, str) and value.strip() and np.isnan(as_number(value))]
    filled = sum(not is_blank(value) for value in column)
    return sum(len(text.split()) for text in texts) / len(texts) if len(texts) * 2 > filled else 0.0


def _name(value: Any) -> str | None:
    """A raw label as the name of a class; None if it is blank."""
    if isinstance(value, list | tuple | set | dict | np.ndarray):
        return json.dumps(str(value))
    if is_blank(value) or value is pd.NaT or value is pd.NA:
        return None
    if isinstance(value, bool | np.bool_):
        return str(value).lower()
    text = value if isinstance(value, str) else str(value)
    return label_key(text.strip())


def _texts(column: pd.Series, where: str, name: str) -> list[str]:
    texts = []
    for row, value in enumerate(column, start=1):
        if isinstance(value, list | tuple | set | dict | bytes | np.ndarray) or is_broken(value):
            raise PipelineError(f"{where}: column '{name}', row {row} is no text: {shortened(value)}")
        blank = is_blank(value) or value is pd.NaT or value is pd.NA
        texts.append("" if blank else str(value))
    return texts


def _ids(table: pd.DataFrame) -> list[str]:
    """The column ``id`` if it names each row, else the number of the row in the file, from 0 as for predictions."""
    numbers = list(map(str, range(len(table))))
    if "id" not in table.columns:
        return numbers
    ids = [_name(value) if isinstance(value, str | int | np.integer) else None for value in table["id"]]
    usable = all(one is not None and not is_broken(one) for one in ids) and len(set(ids)) == len(ids)
    return [str(value) for value in table["id"]] if usable else numbers


def _kind(labels: pd.Series, column: str, where: str) -> Kind:
    numbers = np.array([as_number(name) for name in labels])
    different = len(set(labels))
    share = float(np.mean(~np.isnan(numbers)))
    whole = bool((numbers == np.floor(numbers))[~np.isnan(numbers)].all())
    if whole and any(map(is_code, labels)):
        return "classes"
    if share == 1:
        most = _MOST_CLASSES if _by_name([column], CLASS_NAMES) else _SCORES
        return "classes" if whole and different <= most else "score"
    if odd := _oddly_written(labels):
        raise PipelineError(f"{where}: {odd}")
    if share > _NEARLY_ALL and different > _SCORES:
        other = next(name for name in labels if np.isnan(as_number(name)))
        raise PipelineError(
            f"{where} has numbers in {share:.0%} of its rows, and {shortened(other)} in another: mend these cells, or"
            " leave them blank to drop the rows"
        )
    return "classes"


def _oddly_written(labels: Iterable[str]) -> str | None:
    """What to write instead where nearly all labels would be scores but for a decimal comma or a per cent sign.

    A comma may also join labels that stand alone elsewhere, such as 1,2 beside 1 and 2.
    """
    names = list(labels)
    known, numbers = set(names), np.array([as_number(_with_point(name)) for name in names])
    read = numbers[~np.isnan(numbers)]
    odd = [name for name in names if _is_odd_number(name)]
    # Vacuously so where no number is odd.
    are_joined = all("," in name and known.issuperset(name.split(",")) for name in odd)
    are_classes = bool((read == np.floor(read)).all()) and len(known) <= _SCORES
    if are_joined or are_classes or len(read) < _NEARLY_ALL * len(names):
        return None
    return f"scores are written {_odd_number(odd)}"


def _is_odd_number(name: str) -> bool:
    return bool(np.isnan(as_number(name)) and not np.isnan(as_number(_with_point(name))))


def _odd_number(odd: Sequence[str]) -> str:
    """How such numbers are written, with an example, and what to write."""
    first = odd[0]
    if all(map(_THOUSANDS.fullmatch, odd)):
        return f"with commas, such as {first!r}: write {first.replace(',', '')}, or a decimal point"
    example = next((name for name in odd if "," in name), first)
    how = "with a decimal comma" if "," in example else "in per cent"
    return f"{how}, such as {example!r}: write {_with_point(example)}"


def _with_point(name: str) -> str:
    """A number as others read it: with a decimal point, without a per cent sign and separators of thousands."""
    name = name.removesuffix("%").rstrip()
    return name.replace(",", "") if name.count(",") > 1 and _THOUSANDS.fullmatch(name) else name.replace(",", ".")


def _scores(rows: pd.DataFrame, where: str) -> np.ndarray:
    numbers = np.array([as_number(name) for name in rows["label"]])
    bad = np.isnan(numbers) | (np.abs(numbers) > 1e38)
    if bad.any():
        row = int(bad.argmax())
        value = rows["label"].iloc[row]
        if _is_odd_number(value):
            raise PipelineError(f"{where}: scores are written {_odd_number([value])}")
        raise PipelineError(f"{where}, id {rows['id'].iloc[row]}: {shortened(value)} is no score")
    if np.ptp(numbers) == 0:
        raise PipelineError(f"{where}: all scores are {numbers[0]:g}")
    return numbers


def _check_classes(labels: pd.Series, where: str) -> None:
    counts = Counter(labels)
    if broken := [name for name in counts if is_broken(name)]:
        raise PipelineError(f"{where}: {broken[0]!a}: half a surrogate pair: save the file as UTF-8")
    if len(counts) > min(_MOST_CLASSES, len(labels) / 2):
        raise PipelineError(
            f"{where} has {len(counts)} different values in {len(labels)} rows, too many for classes: name another"
            " column with --label, or --kind score for numbers"
        )
    alone = {name for name in counts if not _LISTS.search(name)}
    for separator in ";|,":
        lists = {name: [part.strip() for part in name.split(separator)] for name in counts if separator in name}
        several = [name for name, parts in lists.items() if len(parts) > 1 and all(part in alone for part in parts)]
        if several:
            number = f"; a number? write {_with_point(several[0])}" if _is_odd_number(several[0]) else ""
            raise PipelineError(
                f"{where}: {shortened(several[0])} joins labels that also stand alone: rows of several labels are not"
                f" supported; keep one label a row, or make a table for each label, with yes or no{number}"
            )
        if separator != ",":
            # The levels of one label, such as sport;football, are as many in each and keep their places.
            places = {(part, place) for parts in lists.values() for place, part in enumerate(parts)}
            moving = len({len(parts) for parts in lists.values()}) > 1 or len(places) > len(
                {part for part, _ in places}
            )
            uses = Counter(part for parts in lists.values() for part in set(parts))
            if moving and sum(count > 1 for count in uses.values()) * 2 > len(uses):
                raise PipelineError(
                    f"{where}: {shortened(next(iter(lists)))} is a list of labels that recur in others: rows of"
                    " several labels are not supported; keep one label a row"
                )


def _keys(rows: pd.DataFrame) -> np.ndarray:
    """A number a row (n,), equal for equal texts; unlike :func:`row_keys`, a pair in the other order has another."""
    columns = [rows[column].map(text_key) for column in ("text_a", "text_b") if column in rows]
    return pd.factorize(pd.Series(list(zip(*columns, strict=True)), dtype=object))[0]


def _contradicting(labels: pd.Series, keys: np.ndarray, kind: Kind) -> np.ndarray:
    """Which rows (bool) have a text that stands in the table with another label too."""
    groups = labels.groupby(keys)
    if kind == "classes":
        return (groups.transform("nunique") > 1).to_numpy()
    spread = groups.transform("max") - groups.transform("min")
    return (spread > _RANGE_SHARE * np.ptp(labels)).to_numpy()


def _class_order(name: str) -> tuple[float, str, str]:
    """Numbers by value, then names by alphabet."""
    number = as_number(name)
    return (np.inf if np.isnan(number) else number, name.casefold(), name)


def _max_length(rows: pd.DataFrame) -> int:
    """128, 256 or 512 tokens: the first that holds 95 % of the rows, at a guess of 1.4 tokens a word."""
    texts = [rows[column] for column in ("text_a", "text_b") if column in rows]
    words = [sum(len(text.split()) for text in row) for row in zip(*texts, strict=True)]
    tokens = 1.4 * float(np.quantile(words, 0.95)) + 3
    return next((length for length in (128, 256) if tokens <= length), 512)


def name_of(file: Path) -> str:
    """A name for the task of ``file``, from its stem; it may still be no valid name."""
    return re.sub(r"[^a-z0-9_-]+", "-", file.stem.casefold()).strip("-_")[:32]
