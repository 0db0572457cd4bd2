"""Raw labels: the classes or scores that they are, and what can be neither."""

import difflib
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
import pandas as pd

from pipeline.data.cells import as_label, as_number, is_code
from pipeline.data.overlap import text_key
from pipeline.data.texts import is_broken
from pipeline.stats.names import Kind
from pipeline.system.errors import PipelineError, rows_text, shortened

FEW = 10
"""A class with fewer training rows is hardly learned."""
MOST_CLASSES = 500
_SCORES = 20
"""Whole numbers of more different values are scores, unless their column is called label or the like."""
_ALIKE = 0.8
"""Two labels are near each other from this ratio of :mod:`difflib` on."""
_MOST_COMPARED = 200_000  # pairs of labels
_DIGITS = re.compile(r"[0-9]+")
_SEPARATORS = re.compile(r"[;|,]")
_NEARLY_ALL = 0.9
_THOUSANDS = re.compile(r"[+-]?[1-9][0-9]{0,2}(,[0-9]{3})+")


def class_names(column: pd.Series) -> list[str]:
    """The names of its values that are not blank."""
    return [name for name in map(as_label, column) if name is not None]


def class_order(name: str) -> tuple[float, str, str]:
    """Numbers by value, then names by alphabet."""
    number = as_number(name)
    return (np.inf if np.isnan(number) else number, name.casefold(), name)


def are_numbers(names: Iterable[str]) -> bool:
    return not any(np.isnan(as_number(name)) for name in names)


def counted(name: str, count: str) -> str:
    """A class and how many rows it has, for a list of them; a number is quoted, so that it is not read as a count."""
    return f"{name} {count}" if np.isnan(as_number(name)) else f"'{name}': {count}"


def kind_of(labels: pd.Series, where: str, is_called_class: bool) -> Kind:
    """Whether labels are classes or scores.

    Args:
        is_called_class: whether their column is called label or the like, so that whole numbers are classes.

    Raises:
        PipelineError: they seem to be scores of which some or all are written as no number is.
    """
    numbers = np.array([as_number(name) for name in labels])
    is_number = ~np.isnan(numbers)
    are_whole = bool((numbers == np.floor(numbers))[is_number].all())
    if are_whole and any(map(is_code, labels)):
        return "classes"
    different, share = len(set(labels)), float(np.mean(is_number))
    if share == 1:
        most = MOST_CLASSES if is_called_class else _SCORES
        return "classes" if are_whole and different <= most else "score"
    if odd := oddly_written(labels):
        raise PipelineError(f"{where}: {odd}")
    if share > _NEARLY_ALL and different > _SCORES:
        other = next(name for name in labels if np.isnan(as_number(name)))
        raise PipelineError(
            f"{where} has numbers in {share:.0%} of its rows, and {shortened(other)} in another: fix these cells, or"
            " leave them blank to drop the rows"
        )
    return "classes"


def oddly_written(labels: Iterable[str]) -> str | None:
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
    if name.count(",") > 1 and _THOUSANDS.fullmatch(name):
        return name.replace(",", "")
    return name.replace(",", ".")


def scores_of(rows: pd.DataFrame, where: str) -> np.ndarray:
    """The labels of the rows as numbers (n,); a :class:`PipelineError` where one is no score, or all are the same.

    The index of ``rows`` counts those of the file from 0.
    """
    numbers = np.array([as_number(name) for name in rows["label"]])
    bad = np.isnan(numbers) | (np.abs(numbers) > 1e38)
    if bad.any():
        row = int(bad.argmax())
        value = rows["label"].iloc[row]
        if _is_odd_number(value):
            raise PipelineError(f"{where}: scores are written {_odd_number([value])}")
        raise PipelineError(f"{where}, row {rows.index[row] + 1}: {shortened(value)} is not a score")
    if np.ptp(numbers) == 0:
        raise PipelineError(f"{where}: all scores are {numbers[0]:g}")
    return numbers


def check_classes(labels: pd.Series, where: str) -> None:
    """Raise a :class:`PipelineError` if ``labels`` are too many for classes, or are several labels a row."""
    counts = Counter(labels)
    if broken := [name for name in counts if is_broken(name)]:
        raise PipelineError(f"{where}: {broken[0]!a}: invalid Unicode (an unpaired surrogate): save the file as UTF-8")
    if len(counts) > min(MOST_CLASSES, len(labels) / 2):
        raise PipelineError(
            f"{where} has {len(counts)} different values in {len(labels)} rows, too many for classes: name another"
            " column with --label, or --kind score for numbers"
        )
    alone = {name for name in counts if not _SEPARATORS.search(name)}
    for separator in ";|,":
        parts_of = {name: [part.strip() for part in name.split(separator)] for name in counts if separator in name}
        _check_not_joined(parts_of, alone, where)
        if separator != ",":  # which stands in names too
            _check_not_lists(parts_of, where)


def _check_not_joined(parts_of: Mapping[str, Sequence[str]], alone: Collection[str], where: str) -> None:
    joined = next((name for name, parts in parts_of.items() if all(part in alone for part in parts)), None)
    if joined is None:
        return
    number = f"; a number? write {_with_point(joined)}" if _is_odd_number(joined) else ""
    raise PipelineError(
        f"{where}: {shortened(joined)} joins labels that also occur alone: rows with several labels are not"
        f" supported; keep one label per row, or make a table for each label, with yes or no{number}"
    )


def _check_not_lists(parts_of: Mapping[str, Sequence[str]], where: str) -> None:
    uses = Counter(part for parts in parts_of.values() for part in set(parts))
    recurring = sum(count > 1 for count in uses.values())
    if recurring * 2 > len(uses) and not _are_levels(parts_of.values()):
        raise PipelineError(
            f"{where}: {shortened(next(iter(parts_of)))} is a list of labels that recur in others: rows of"
            " several labels are not supported; keep one label per row"
        )


def _are_levels(names: Collection[Sequence[str]]) -> bool:
    """Whether names are levels of one label each, such as sport;football: as many in all, and each in one place."""
    places = {(part, place) for parts in names for place, part in enumerate(parts)}
    return len(set(map(len, names))) <= 1 and len(places) == len({part for part, _ in places})


def did_you_mean(rows: pd.DataFrame) -> list[str]:
    """A line for each label that occurs once and is spelt nearly like another, or differs from it in case alone.

    The index of ``rows`` counts those of the file from 0.
    """
    counts = Counter(rows["label"])
    by_key: dict[str, list[str]] = {}
    for name in counts:
        by_key.setdefault(text_key(name), []).append(name)
    frequent = [name for name, count in counts.items() if count > 1]
    compares_spelling = (len(counts) - len(frequent)) * len(frequent) <= _MOST_COMPARED
    lines = []
    for name, count in counts.items():
        others = [other for other in by_key[text_key(name)] if (counts[other], other) > (count, name)]
        if not others and count == 1 and compares_spelling:
            others = _spelt_nearly_like(name, frequent)
        if others and np.isnan(as_number(name)):
            own = rows_text((rows.index[rows["label"] == name] + 1).tolist())
            times = "once" if count == 1 else f"{count} times"
            lines.append(f"label {shortened(name)} occurs {times} ({own}): did you mean {others[0]!r}?")
    return lines


def nearest_class(name: str, classes: Sequence[str]) -> str | None:
    """The class that ``name`` differs from in case, space and punctuation alone, else one that it is spelt nearly like.

    None: it is like none.
    """
    if not np.isnan(as_number(name)):
        return None
    same = [other for other in classes if text_key(other) == text_key(name)]
    return next(iter([*same, *_spelt_nearly_like(name, classes)]), None)


def _spelt_nearly_like(name: str, known: Sequence[str]) -> list[str]:
    """Those of ``known`` that are spelt nearly like ``name``, the nearest first."""
    # Kat34 and Kat35 are two names, not one that is misspelt.
    alike = difflib.get_close_matches(name, known, 3, _ALIKE)
    return [other for other in alike if _DIGITS.sub("", other) != _DIGITS.sub("", name)]
