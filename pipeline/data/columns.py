"""Find the columns with the texts and the label: as given, else by name, else by content."""

import re
import shlex
import warnings
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from pipeline.data.cells import as_label, as_number, is_blank
from pipeline.data.delimited import is_unnamed
from pipeline.data.raw_labels import FEW, MOST_CLASSES, Meaning, are_numbers, class_names, oddly_written
from pipeline.data.texts import count_words, is_broken, name_among
from pipeline.system.errors import PipelineError

_TEXT_NAMES = (
    "text", "sentence", "message", "review", "body", "content", "comment", "question", "utterance", "tweet", "query",
    "premise", "document", "description", "summary", "title", "subject",
)  # fmt: skip
_MAIN_TEXT_NAMES = ("text", "sentence", "message", "review", "body", "content", "comment", "utterance", "tweet")
"""Names for a row's main text, unlike a title or a subject, which may accompany a pair."""
_CLASS_NAMES = (
    "label", "labels", "class", "category", "intent", "sentiment", "queue", "topic", "tag", "emotion", "polarity",
)  # fmt: skip
_SCORE_NAMES = ("score", "rating", "stars", "similarity", "relatedness")
_LABEL_NAMES = (*_CLASS_NAMES, "target", "gold", *_SCORE_NAMES, "y")
_NUMBERING = ("index", "idx", "number", "num", "nr", "no")
_ROW_NAMES = ("id", "ids", "uuid", "key", *_NUMBERING, "date", "datetime", "time", "timestamp")
_SIDES = (("1", "2"), ("a", "b"), ("left", "right"), ("first", "second"), ("one", "two"))
"""Words that distinguish the two columns of a pair, whose names otherwise agree."""
_PAIRS = (
    ("premise", "hypothesis"), ("question", "answer"), ("query", "passage"), ("question", "sentence"),
    ("query", "document"), ("query", "doc"), ("query", "response"), ("question", "passage"), ("question", "document"),
    ("question", "context"), ("question", "response"), ("anchor", "positive"), ("claim", "evidence"),
    ("statement", "evidence"), ("prompt", "response"), ("context", "response"), ("original", "paraphrase"),
    ("reference", "candidate"), ("source", "translation"), ("text", "hypothesis"), ("sentence", "hypothesis"),
    ("tweet", "reply"), ("comment", "reply"), ("post", "reply"),
)  # fmt: skip
_WORD_BREAK = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[^\W\d_])(?=\d)|(?<=\d)(?=[^\W\d_])")
_DATED = re.compile(r"(?<!\d)(18|19|20)\d\d(?!\d)|(?<!\d)\d\d([./-])\d\d\2\d\d(?!\d)")
"""A four-digit year, or two-digit day, month and year. Without this, pandas would take 1.2.3 and May for dates too."""


@dataclass(frozen=True)
class Columns:
    text: tuple[str, ...]
    label: str
    unused: tuple[str, ...]


def find_columns(table: pd.DataFrame, where: str, text: Sequence[str] = (), label: str | None = None) -> Columns:
    """The columns of texts and labels: as given, else by name, else by content."""
    # If the table has the columns that the user named, its header was found. Otherwise a title may precede the header.
    is_header = bool(text) and {*text, label} <= {*table.columns}
    if not is_header and 2 * sum(map(is_unnamed, table.columns)) > len(table.columns):
        raise _unnamed(table, where)
    label = label if label is None else name_among(label, table.columns) or label
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
    free = [column for column in table.columns if not _is_id(column)]
    if broken := [column for column in free if is_broken(column)]:
        raise PipelineError(f"{where}: column {broken[0]!a}: invalid Unicode (an unpaired surrogate): rename it")
    if label is None:
        label = _label_column(table[[c for c in free if c not in text]], where)
        names = class_names(table[label])
        if as_label(label) in names or (are_numbers([label]) and are_numbers(names)):
            raise PipelineError(
                f"{where}: column '{label}' is called like a label: the first line must name the columns, and no other"
                f" line (if it does: --label {shlex.quote(label)})"
            )
    texts = tuple(text) or _text_columns(table[[c for c in free if c != label]], where)
    if any(map(is_unnamed, (*texts, label))):
        raise _unnamed(table, where)
    used = {*texts, label, id_column(table)}
    return Columns(texts, label, tuple(column for column in table.columns if column not in used))


def columns_named(option: str, columns: Collection[str]) -> list[str]:
    """The columns of ``--text``: one, or two separated by a comma; names may contain commas.

    A name counts as written, or else without the blanks around it. Names missing from ``columns`` are returned too, for
    the caller's message.
    """
    if (whole := name_among(option, columns)) is not None:
        return [whole]
    for comma in re.finditer(",", option):
        first, second = (name_among(part, columns) for part in (option[: comma.start()], option[comma.end() :]))
        if first is not None and second is not None:
            return [first, second]
    return [part.strip() for part in option.split(",") if part.strip()]


def id_column(table: pd.DataFrame) -> str | None:
    """The column ``id``, or else the first that matches it ignoring case; None if there is none."""
    return next((column for column in ("id", *table.columns) if column in table and _is_id(column)), None)


def _is_id(column: str) -> bool:
    return column.strip().casefold() == "id"


def meaning_of(column: str) -> Meaning | None:
    """How the name of a column classifies its numbers (label, class_id and postcode are no scores); None: unknown."""
    *others, last = _words(column) or [""]
    if (
        last in ("id", "ids", "zip", "plz")
        or last.endswith(("code", "codes"))
        or last.removesuffix("id") in set(_CLASS_NAMES) - {last}
        or (last in _NUMBERING and not set(_CLASS_NAMES).isdisjoint(others))
    ):
        return "code"
    if _by_name([column], _CLASS_NAMES) is not None:
        return "class"
    return "score" if _by_name([column], _SCORE_NAMES) is not None else None


def _label_column(table: pd.DataFrame, where: str) -> str:
    if named := _by_name(list(table.columns), _LABEL_NAMES):
        return named
    few = [column for column in table.columns if _may_be_label(table[column])]
    few = few or [column for column in table.columns if _is_class_id(column)]
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


def flag_columns(table: pd.DataFrame, text: Sequence[str], label: str | None) -> list[str]:
    """The columns of 0 and 1, one a label: those that ``--label`` names with commas, or all that could be the label."""
    if label is not None:
        named = [name_among(part, table.columns) for part in label.split(",")]
        return [] if label in table or None in named or len(named) < 2 else [name for name in named if name]
    free = [column for column in table.columns if not (_is_id(column) or is_unnamed(column) or column in text)]
    few = [] if _by_name(free, _LABEL_NAMES) else [column for column in free if _may_be_label(table[column])]
    are_flags = all(set(class_names(table[column])) in ({"0", "1"}, {"false", "true"}) for column in few)
    return few if are_flags and len(few) > 1 else []


def _unnamed(table: pd.DataFrame, where: str) -> PipelineError:
    size = len(table.columns)
    names = size - sum(map(is_unnamed, table.columns))
    return PipelineError(
        f"{where}: the first row names only {names} of {size} columns: delete the rows above the header if it is"
        " further down; else name the columns of the texts and the label there"
    )


def _text_columns(table: pd.DataFrame, where: str) -> tuple[str, ...]:
    words = {column: mean_words(table[column]) for column in table.columns}
    candidates = [column for column in table.columns if words[column] > 0]
    # Given text, address1 and address2, the text column is text.
    is_named = any(_words(column) == [name] for column in candidates for name in _MAIN_TEXT_NAMES)
    if pairs := _pairs(candidates, of_texts=is_named):
        # Columns such as sentence1_parse and id1 accompany the texts.
        return min(pairs, key=lambda pair: (len(_words(pair[0])), -words[pair[0]] - words[pair[1]]))
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
    """The column whose name, or last word, is one of ``names``; earlier names take precedence."""
    words = {column: _words(column) for column in columns}
    for matches in (lambda own, name: "_".join(own) == name, lambda own, name: len(name) > 1 and own[-1:] == [name]):
        for name in names:
            for column in columns:
                if matches(words[column], name):
                    return column
    return None


def _words(column: str) -> list[str]:
    """The words and numbers in a name: customerId, sentence1 and #1 String have two."""
    return [word for word in re.split(r"[\W_]+", _WORD_BREAK.sub(" ", column).casefold()) if word]


def _pairs(columns: Sequence[str], of_texts: bool) -> list[tuple[str, str]]:
    """Pairs of columns whose names differ in one word, such as sentence1 and sentence2.

    Args:
        of_texts: whether a shared word must be a name for a text.
    """
    by_words = {tuple(_pair_words(column)): column for column in columns}
    pairs = []
    for words, column in by_words.items():
        for first, second in (*_SIDES, *_PAIRS):
            for place in (place for place, word in enumerate(words) if word == first):
                rest = {*words[:place], *words[place + 1 :]}
                may_be = (first, second) in _PAIRS or (not rest.isdisjoint(_TEXT_NAMES) if of_texts else bool(rest))
                other = by_words.get((*words[:place], second, *words[place + 1 :]))
                if may_be and other is not None:
                    pairs.append((column, other))
        if words and words[-1] in _TEXT_NAMES:  # text beside text_pair, text2 or text_b
            others = (by_words.get((*words, end)) for end in ("pair", "2", "b"))
            pairs += [(column, other) for other in others if other is not None]
    return pairs


def _pair_words(column: str) -> list[str]:
    """The words of a name; the final letters of texta and sentenceb count as words."""
    words = _words(column)
    if words and words[-1][-1] in "ab" and words[-1][:-1] in _TEXT_NAMES:
        words[-1:] = [words[-1][:-1], words[-1][-1]]
    return words


def _may_be_label(column: pd.Series) -> bool:
    """Whether a column has at least two values, which occur at least twice on average, and no prose, ids or dates."""
    name, values = str(column.name), class_names(column)
    different = list(dict.fromkeys(values))
    words = sum(len(value.split()) for value in different) / max(1, len(different))
    if not 2 <= len(different) <= min(MOST_CLASSES, len(values) / 2) or words >= 6:
        return False
    # The values of a column named as an id, a number or a date are labels only if they recur as classes would.
    is_row = not _is_class_id(name) and not set(_ROW_NAMES).isdisjoint(_words(name)[-1:])
    if is_row and len(values) < FEW * len(different):
        return False
    # Dates in any order that pandas reads; numbers are none.
    if not all(_DATED.search(value) and np.isnan(as_number(value)) for value in different):
        return True
    with warnings.catch_warnings(action="ignore"):  # of time zones that it does not know
        dates = pd.to_datetime(pd.Series(different), format="mixed", dayfirst=True, utc=True, errors="coerce")
    return not dates.notna().all()


def _is_class_id(column: str) -> bool:
    """Whether a column has a name such as class_id or label code."""
    return meaning_of(column) == "code" and not set(_CLASS_NAMES).isdisjoint(_words(column)[:-1])


def mean_words(column: pd.Series) -> float:
    """Mean number of words in a text (:func:`count_words`); 0 if most values are no text."""
    texts = [value for value in column if isinstance(value, str) and value.strip() and np.isnan(as_number(value))]
    filled = sum(not is_blank(value) for value in column)
    if len(texts) * 2 <= filled:
        return 0.0
    return sum(map(count_words, texts)) / len(texts)
