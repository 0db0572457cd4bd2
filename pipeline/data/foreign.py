"""Read a table as its author meant it: find the columns with the texts and the label, and tell classes from scores.

Columns are found as given, else by name, else by content. Labels that are neither classes nor scores are reported.
"""

import re
import shlex
import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from pipeline.data.cells import (
    alike,
    as_label,
    as_number,
    count_words,
    is_blank,
    is_broken,
    is_code,
    name_among,
    text_key,
)
from pipeline.data.delimited import is_unnamed
from pipeline.data.labels import Kind
from pipeline.system.errors import PipelineError, rows_text, shortened

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
Meaning = Literal["class", "code", "score"]
"""What the name of a column says about its numbers: classes, scores, or codes, which are classes but never scores."""
FEW = 10
"""A class with fewer training rows is hardly learned."""
MOST_CLASSES = 500
"""Of a column that is not named as the label, and of whole numbers in one called label or the like."""
_SCORES = 20
"""Whole numbers with more distinct values are scores, unless the column's name says that they are classes."""
_MOST_COMPARED = 50_000  # pairs of labels
_SEPARATORS, _IN_NAMES = ";|\n\t", "#,/+&"
_NEARLY_ALL = 0.9


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


def ids_of(table: pd.DataFrame) -> tuple[list[str], str | None]:
    """The column ``id`` if it identifies the rows, else row numbers in the file, from 0 as in predictions.

    Also returns what to say if there is such a column and it does not: a cell is blank, or not unique.
    """
    numbers, column = list(map(str, range(len(table)))), id_column(table)
    if column is None:
        return numbers, None
    names = [str(value).strip() if isinstance(value, str | int | np.integer) else "" for value in table[column]]
    if all(names) and len({*names}) == len(names) and not any(map(is_broken, names)):
        return [str(value) for value in table[column]], None
    return (
        numbers,
        f"column {column!r} does not name the rows, which are numbered from 0: a cell is blank or not unique",
    )


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


def class_names(column: pd.Series) -> list[str]:
    """The class names of all values that are not blank."""
    return [name for name in map(as_label, column) if name is not None]


def are_numbers(names: Iterable[str]) -> bool:
    return not any(np.isnan(as_number(name)) for name in names)


def kind_of(labels: pd.Series, where: str, meaning: Meaning | None) -> Kind:
    """Whether labels are classes or scores.

    Args:
        meaning: what the name of their column says.

    Raises:
        PipelineError: they seem to be scores, but some or all are not written as numbers.
    """
    numbers = np.array([as_number(name) for name in labels])
    is_number = ~np.isnan(numbers)
    are_whole = bool((numbers == np.floor(numbers))[is_number].all())
    if are_whole and any(map(is_code, labels)):
        return "classes"
    different, share = len(set(labels)), float(np.mean(is_number))
    if share == 1:
        # 1.1 and 1.10 are the same number but different sections, versions or codes.
        if meaning == "code" or (meaning != "score" and different > len(set(numbers))):
            return "classes"
        most = MOST_CLASSES if meaning == "class" else _SCORES
        return "classes" if are_whole and different <= most else "score"
    if odd := oddly_written(labels):
        raise PipelineError(f"{where}: {odd}")
    if share > _NEARLY_ALL and different > _SCORES:
        other = next(name for name in labels if np.isnan(as_number(name)))
        raise PipelineError(
            f"{where} has numbers in {share:.0%} of its rows, and {shortened(other)} in another: fix these cells, or"
            f" leave out their rows, --drop-labels={shlex.quote(other)}"
        )
    return "classes"


def oddly_written(labels: Iterable[str]) -> str | None:
    """How to rewrite labels that would nearly all be scores but for a decimal comma or a per cent sign; None if not.

    A comma may also join labels that occur alone elsewhere, such as 1,2 beside 1 and 2.
    """
    names = list(labels)
    known, numbers = set(names), np.array([as_number(_with_point(name)) for name in names])
    odd = [name for name in names if np.isnan(as_number(name)) and not np.isnan(as_number(_with_point(name)))]
    # Vacuously true if no number is odd.
    are_joined = all("," in name and known.issuperset(name.split(",")) for name in odd)
    read = numbers[~np.isnan(numbers)]
    are_classes = bool((read == np.floor(read)).all()) and len(known) <= _SCORES
    if are_joined or are_classes or len(read) < _NEARLY_ALL * len(names):
        return None
    return f"scores are written like {odd[0]!r}: write a decimal point, and no other commas, points or per cent signs"


def _with_point(name: str) -> str:
    """A number with a decimal point, without per cent sign and thousands separators."""
    name = name.removesuffix("%").rstrip()
    return (name.replace(".", "") if name.rfind(".") < name.find(",") else name).replace(",", ".")  # 1.234,5


def scores_of(rows: pd.DataFrame, where: str) -> np.ndarray:
    """The labels of the rows as numbers (n,); a :class:`PipelineError` if one is no score, or all are equal.

    ``rows`` is indexed by number of row in the file.
    """
    numbers = np.array([as_number(name) for name in rows["label"]])
    bad = np.isnan(numbers) | (np.abs(numbers) > 1e38)
    if bad.any():
        row = int(bad.argmax())
        odd = oddly_written(rows["label"]) or f"{shortened(rows['label'].iloc[row])} is not a score"
        raise PipelineError(f"{where}, row {rows.index[row]}: {odd}")
    if np.ptp(numbers) == 0:
        raise PipelineError(f"{where}: all scores are {numbers[0]:g}")
    return numbers


def check_classes(labels: pd.Series, where: str, *, is_asked: bool, are_several: bool) -> None:
    """Raise a :class:`PipelineError` if ``labels`` are not classes, or join several.

    Args:
        is_asked: the user asked for classes, however rare they are.
        are_several: a row may have several of these labels, one after the other.
    """
    counts = Counter(labels)
    if are_several and (len(counts) < 2 or counts.keys() <= {"0", "1"}):
        raise PipelineError(f"{where} has the labels {', '.join(sorted(counts))} alone: write the names of two or more")
    if are_several and len(counts) > max(MOST_CLASSES, len(labels) / 2):
        raise PipelineError(f"{where} has {len(counts):,} different labels, too many: name another column with --label")
    is_asked = is_asked or are_several
    if broken := [name for name in counts if is_broken(name)]:
        raise PipelineError(f"{where}: {broken[0]!a}: invalid Unicode (an unpaired surrogate): save the file as UTF-8")
    if not is_asked and len(counts) > len(labels) / 2:
        raise PipelineError(
            f"{where} has {len(counts)} different values in {len(labels)} rows, too many for classes: name another"
            " column with --label, or --kind classes if these are classes, or --kind score for numbers"
        )
    if (separator := separator_in(labels)) and (separator in _SEPARATORS or not is_asked):
        name = next(name for name in counts if separator in name)
        raise PipelineError(
            f"{where}: {shortened(name)} joins labels that also occur elsewhere: --kind labels reads several a row, and"
            " --kind score needs a decimal point"
        )


def separator_in(labels: pd.Series) -> str | None:
    """What stands between labels of a row, whose parts occur alone as well, or in other lists; None: nothing."""
    counts = Counter(labels)
    for separator in _SEPARATORS + _IN_NAMES:
        parts_of = {
            name: [p.strip() for p in name.split(separator) if p.strip()] for name in counts if separator in name
        }
        # In a list with a;b; the label a; is a alone.
        alone = {*counts} - {*parts_of} | {parts[0] for parts in parts_of.values() if len(parts) == 1}
        are_joined = any(parts[1:] and alone.issuperset(parts) for parts in parts_of.values())
        if are_joined or (separator in ";|" and _are_lists(parts_of.values())):
            return separator
    return None


def _are_lists(names: Collection[Sequence[str]]) -> bool:
    """Whether most parts recur, unless they are levels of one label, such as sport;football: always in one place."""
    uses = Counter(part for parts in names for part in set(parts))
    places = {(part, place) for parts in names for place, part in enumerate(parts)}
    are_levels = len(set(map(len, names))) <= 1 and len(places) == len(uses)
    return sum(count > 1 for count in uses.values()) * 2 > len(uses) and not are_levels


def did_you_mean(rows: pd.DataFrame) -> list[str]:
    """A line for every label that occurs once and is spelt nearly like another, or differs from it in case alone.

    ``rows`` is indexed by number of row in the file.
    """
    places = {str(name): own for name, own in rows.groupby("label", sort=False).indices.items()}
    by_key: dict[str, list[str]] = {}
    for name in places:
        by_key.setdefault(text_key(name), []).append(name)
    known = [name for name, own in places.items() if len(own) > 1]
    # Comparing more takes seconds.
    known = known if len(known) * (len(places) - len(known)) <= _MOST_COMPARED else []
    lines = []
    for name, own in places.items():
        others = [other for other in by_key[text_key(name)] if (len(places[other]), other) > (len(own), name)]
        if not others and len(own) == 1:
            others = alike(name, known)
        if others and np.isnan(as_number(name)):
            times = "once" if len(own) == 1 else f"{len(own)} times"
            which = rows_text(rows.index[own].tolist())
            lines.append(f"label {shortened(name)} occurs {times} ({which}): did you mean {others[0]!r}?")
    return lines
