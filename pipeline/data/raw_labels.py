"""Raw labels: tell classes from scores, and find labels that are neither."""

import difflib
import re
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd

from pipeline.data.cells import as_label, as_number, is_blank, is_code
from pipeline.data.metric_names import Kind
from pipeline.data.overlap import text_key
from pipeline.data.texts import is_broken
from pipeline.system.errors import PipelineError, rows_text, shortened

Meaning = Literal["class", "code", "score"]
"""What the name of a column says about its numbers: classes, scores, or codes, which are classes but never scores."""
FEW = 10
"""A class with fewer training rows is hardly learned."""
MOST_CLASSES = 500
"""Of a column that is not named as the label, and of whole numbers in one called label or the like."""
_SCORES = 20
"""Whole numbers with more distinct values are scores, unless the column's name says that they are classes."""
_ALIKE = 0.85
"""Two labels are similar from this ratio of :mod:`difflib` on."""
_MOST_COMPARED = 50_000  # pairs of labels
_DIGITS = re.compile(r"[0-9]+")
_SEPARATORS, _IN_NAMES = ";|\n\t", "#,/+&"
_NEARLY_ALL = 0.9


def class_names(column: pd.Series) -> list[str]:
    """The class names of all values that are not blank."""
    return [name for name in map(as_label, column) if name is not None]


def class_order(name: str) -> tuple[float, str, str]:
    """Numbers by value, then names by alphabet."""
    number = as_number(name)
    return (np.inf if np.isnan(number) else number, name.casefold(), name)


def are_numbers(names: Iterable[str]) -> bool:
    return not any(np.isnan(as_number(name)) for name in names)


def counted(name: str, count: str) -> str:
    """A class and its row count, for use in a list; a number is quoted, so that it is not mistaken for a count."""
    return f"{name} {count}" if np.isnan(as_number(name)) else f"'{name}': {count}"


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
            others = _alike(name, known)
        if others and np.isnan(as_number(name)):
            times = "once" if len(own) == 1 else f"{len(own)} times"
            which = rows_text(rows.index[own].tolist())
            lines.append(f"label {shortened(name)} occurs {times} ({which}): did you mean {others[0]!r}?")
    return lines


def nearest_class(cell: Any, classes: Sequence[str]) -> str:
    """A hint at the class that a text differs from only in case, space and punctuation, else at one spelt similarly.

    Empty if no class is similar, for a blank and for a number.
    """
    if not isinstance(cell, str) or is_blank(cell) or not np.isnan(as_number(cell)):
        return ""
    same = [name for name in classes if text_key(name) == text_key(cell)]
    return next((f" (did you mean {shortened(name)}?)" for name in [*same, *_alike(cell, classes)]), "")


def _alike(name: str, names: Sequence[str]) -> list[str]:
    """The most similar of ``names`` that have the digits of ``name``: Kat34 is no misspelt Kat35."""
    alike = difflib.get_close_matches(name, names, 3, _ALIKE)
    return [other for other in alike if _DIGITS.findall(other) == _DIGITS.findall(name)]
