"""Which columns of a table hold the texts and the label: as given, else by name, else by what they hold."""

import re
import shlex
import warnings
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from pipeline.data.cells import as_label, as_number, is_blank
from pipeline.data.labels import FEW, MOST_CLASSES, class_names, oddly_written
from pipeline.data.texts import count_words, is_broken
from pipeline.system.errors import PipelineError

_TEXT_NAMES = (
    "text", "sentence", "message", "review", "body", "content", "comment", "question", "utterance", "tweet", "query",
    "premise", "document", "description", "summary", "title", "subject",
)  # fmt: skip
_MAIN_TEXT_NAMES = ("text", "sentence", "message", "review", "body", "content", "comment", "utterance", "tweet")
"""Names of a row's text, unlike a title or a subject, which may stand beside a pair."""
_CLASS_NAMES = (
    "label", "labels", "class", "category", "intent", "sentiment", "queue", "topic", "tag", "emotion", "polarity",
)  # fmt: skip
_LABEL_NAMES = (*_CLASS_NAMES, "target", "gold", "score", "rating", "stars", "similarity", "relatedness", "y")
_ROW_NAMES = ("id", "ids", "uuid", "key", "number", "num", "nr", "no", "index", "date", "datetime", "time", "timestamp")
_PAIRS = (("premise", "hypothesis"), ("question", "answer"), ("query", "passage"), ("question", "sentence"))
_UNNAMED = re.compile(r"Unnamed: [0-9]+")
_DATED = re.compile(r"(?<!\d)(18|19|20)\d\d(?!\d)|(?<!\d)\d\d([./-])\d\d\2\d\d(?!\d)")
"""A year of four digits, or day, month and year of two each. Without these pandas takes 1.2.3 and May for dates too."""
_PAIR_ENDS = (("1", "2"), ("a", "b"), ("_left", "_right"))


@dataclass(frozen=True)
class Columns:
    text: tuple[str, ...]
    label: str
    unused: tuple[str, ...]


def find_columns(table: pd.DataFrame, where: str, text: Sequence[str] = (), label: str | None = None) -> Columns:
    """The columns of texts and labels: as given, else by name, else by what they hold."""
    if not text or not {*text, label} <= {*table.columns}:  # else the header is one, whatever stands beside it
        _check_title(table, where)
    _check_given(table, where, text, label)
    free = [column for column in table.columns if not names_rows(column)]
    if broken := [column for column in free if is_broken(column)]:
        raise PipelineError(f"{where}: column {broken[0]!a}: invalid Unicode (an unpaired surrogate): rename it")
    if label is None:
        label = _label_column(table[[c for c in free if c not in text]], where)
        _check_header(table, label, where)
    texts = tuple(text) or _text_columns(table[[c for c in free if c != label]], where)
    if any(map(_is_unnamed, (*texts, label))):
        raise _unnamed(table, where)
    return Columns(texts, label, tuple(c for c in free if c != label and c not in texts))


def columns_named(option: str, columns: Collection[str]) -> list[str]:
    """The columns of ``--text``: one, or two with a comma between them; a name may itself hold commas.

    Each is meant as it is written, or else without the blanks around it. What is none of ``columns`` is among the names
    all the same, for a message.
    """
    if (whole := _column(option, columns)) is not None:
        return [whole]
    for comma in re.finditer(",", option):
        first, second = _column(option[: comma.start()], columns), _column(option[comma.end() :], columns)
        if first is not None and second is not None:
            return [first, second]
    return [part.strip() for part in option.split(",") if part.strip()]


def _column(name: str, columns: Collection[str]) -> str | None:
    return next((each for each in (name, name.strip()) if each in columns), None)


def names_rows(column: str) -> bool:
    """Whether a column is called ``id``, in any case."""
    return column.strip().casefold() == "id"


def is_called_class(column: str) -> bool:
    """Whether a column is called label, category or the like, and not score or the like."""
    return _by_name([column], _CLASS_NAMES) is not None


def _check_given(table: pd.DataFrame, where: str, text: Sequence[str], label: str | None) -> None:
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


def _label_column(table: pd.DataFrame, where: str) -> str:
    if named := _by_name(list(table.columns), _LABEL_NAMES):
        return named
    few = [column for column in table.columns if _may_be_label(table[column])]
    flags = [column for column in few if set(class_names(table[column])) <= {"0", "1"}]
    if len(flags) > 1 and len(flags) == len(few):
        raise PipelineError(
            f"{where}: columns {_listed(flags)} have only 0 and 1: rows with several labels are not"
            f" supported; make a task for each column, such as --label {shlex.quote(flags[0])}"
        )
    if len(few) == 1:
        return str(few[0])
    if not few and len(table.columns) < 2:
        beside = f" beside {_listed(table.columns)}" if len(table.columns) else ""
        raise PipelineError(f"{where}: no column{beside} can be the label: add one with the label of each row")
    candidates = few or list(table.columns)
    reason = "several columns could be the label" if few else "no column has a few recurring values"
    odd = {column: oddly_written(class_names(table[column])) for column in candidates}
    hint = next((f" (column '{column}': {text})" for column, text in odd.items() if text), "")
    raise PipelineError(f"{where}: {reason}: name one with --label: {_listed(candidates)}{hint}")


def _check_header(table: pd.DataFrame, label: str, where: str) -> None:
    """Raise a :class:`PipelineError` if the name of the column ``label`` is a label, as in a file without a header."""
    name, is_number = as_label(label), not np.isnan(as_number(label))
    names = class_names(table[label])
    if name in names or (is_number and not any(np.isnan(as_number(other)) for other in names)):
        raise PipelineError(
            f"{where}: column '{label}' is called like a label: the first line must name the columns, and no other line"
            f" (if it does: --label {shlex.quote(label)})"
        )


def _check_title(table: pd.DataFrame, where: str) -> None:
    """Raise a :class:`PipelineError` if most columns have no name, as where a title stands above the row of names."""
    if 2 * sum(map(_is_unnamed, table.columns)) > len(table.columns):
        raise _unnamed(table, where)


def _is_unnamed(column: str) -> bool:
    return _UNNAMED.fullmatch(column) is not None


def _unnamed(table: pd.DataFrame, where: str) -> PipelineError:
    size = len(table.columns)
    names = size - sum(map(_is_unnamed, table.columns))
    return PipelineError(
        f"{where}: the first row names only {names} of {size} columns: delete the rows above the header, or name the"
        " columns of the texts and the label there"
    )


def _text_columns(table: pd.DataFrame, where: str) -> tuple[str, ...]:
    words = {column: mean_words(table[column]) for column in table.columns}
    candidates = [column for column in table.columns if words[column] > 0]
    # Of columns called text, address1 and address2 the texts are in the first.
    is_named = any(_words(column) == [name] for column in candidates for name in _MAIN_TEXT_NAMES)
    if pair := _pair(candidates, of_texts=is_named):
        return pair
    if named := _by_name(candidates, _TEXT_NAMES):
        return (named,)
    if not len(table.columns):
        raise PipelineError(f"{where}: no column is left for the texts: add one, or name another label with --label")
    if not candidates or words[longest := max(candidates, key=words.__getitem__)] < 2:
        raise PipelineError(
            f"{where}: no column has texts of several words: name one with --text: {_listed(table.columns)}"
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


def _pair(columns: Sequence[str], of_texts: bool) -> tuple[str, str] | None:
    """Two columns that are named as a pair, such as ``sentence1`` and ``sentence2``.

    Args:
        of_texts: whether a name before 1 and 2 must be one of a text.
    """
    known = {column.casefold(): column for column in columns}
    for column in known:
        for first, second in _PAIR_ENDS:
            stem = column.removesuffix(first)
            other = stem + second
            may_be = not of_texts or _by_name([stem.rstrip("_ ")], _TEXT_NAMES) is not None
            if column.endswith(first) and stem and other in known and may_be:
                return known[column], known[other]
    return next(((known[a], known[b]) for a, b in _PAIRS if a in known and b in known), None)


def _may_be_label(column: pd.Series) -> bool:
    return _has_few_values(column) and not _names_rows(column) and not _are_dates(column)


def _has_few_values(column: pd.Series) -> bool:
    """Whether a column may be a label: it has two values or more that occur twice or more on average, and no prose."""
    names = class_names(column)
    different = set(names)
    words = sum(len(name.split()) for name in different) / max(1, len(different))
    return 2 <= len(different) <= min(MOST_CLASSES, len(names) / 2) and words < 6


def _names_rows(column: pd.Series) -> bool:
    """Whether a column is called an id, a number or a date, and its values are rarer than those of a class."""
    # A capital begins a word: customerId.
    words = _words(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", str(column.name)))
    names = class_names(column)
    return words[-1] in _ROW_NAMES and len(names) < FEW * len(set(names))


def _are_dates(column: pd.Series) -> bool:
    """Whether all its values are dates, which pandas reads in any usual order; numbers are none."""
    names = list(dict.fromkeys(class_names(column)))
    if not all(_DATED.search(name) and np.isnan(as_number(name)) for name in names):
        return False
    with warnings.catch_warnings(action="ignore"):  # of time zones that it does not know
        dates = pd.to_datetime(pd.Series(names), format="mixed", dayfirst=True, utc=True, errors="coerce")
    return bool(dates.notna().all())


def mean_words(column: pd.Series) -> float:
    """Words of a mean text, as :func:`count_words` counts them; 0 if most values are no text."""
    texts = [value for value in column if isinstance(value, str) and value.strip() and np.isnan(as_number(value))]
    filled = sum(not is_blank(value) for value in column)
    if len(texts) * 2 <= filled:
        return 0.0
    return sum(map(count_words, texts)) / len(texts)
