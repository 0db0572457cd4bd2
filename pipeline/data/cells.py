"""Interpret a raw cell of a table: whether it is blank, and its value as a text, as a label and as a number.

All commands read cells by these functions, so ``predict`` and ``evaluate`` accept every file that ``tasks new`` does.
"""

import ast
import json
import re
from contextlib import suppress
from typing import Any

import numpy as np
import pandas as pd

from pipeline.data.texts import same_form
from pipeline.system.errors import shortened

_WHOLE = re.compile(r"\s*([+-]?[1-9][0-9]*)\s*")
_BOOLEANS = ("true", "True", "TRUE", "false", "False", "FALSE")
_MOST_EXACT = 2**53
"""The smallest whole number that shares its ``float`` with another one."""
_QUOTED = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""", re.DOTALL)
_BRACKETS = {"[": "]", "(": ")", "{": "}"}
_CALL = re.compile(r"(?:np\.|numpy\.)?(?:array|list|tuple|set|frozenset)\((.*?)(?:, *dtype=[^()]*)?\)", re.DOTALL)
_GROUPED = re.compile(r"\s*[+-]?[1-9][0-9]{0,2}([ \u00a0\u2007\u2009\u202f'\u2019][0-9]{3})+(\.[0-9]+)?\s*")
_NO_DIGIT = re.compile(r"[^0-9.+-]")
_CODE = re.compile(r"\s*[+-]?(0[0-9]|[0-9]*_|[0-9]+[eE][0-9])")


def is_blank(value: Any) -> bool:
    """Whether a cell holds only white space, or a missing value of pandas."""
    if isinstance(value, str):
        return not value.strip()
    return value is None or value is pd.NA or value is pd.NaT or (isinstance(value, float) and np.isnan(value))


def is_nested(value: Any) -> bool:
    return isinstance(value, list | tuple | set | dict | np.ndarray)


def listed(value: Any) -> list[Any] | None:
    """The labels in a cell that holds a list or a set, or spells one; None for any other cell.

    Python, JSON and NumPy spell lists as ``['a', 'b']``, ``["a", "b"]``, ``['a' 'b']`` and ``array(['a', 'b'])``,
    fastText as ``__label__a __label__b``. A name in brackets without quotes, such as ``[a]``, is a name.
    """
    if is_nested(value) and not isinstance(value, dict):
        return list(np.atleast_1d(value)) if isinstance(value, np.ndarray) else list(value)
    text = value.strip() if isinstance(value, str) else ""
    if text.startswith("__label__"):
        labels = re.split(r"[,\s]+", text)
        return labels if len(labels) > 1 and all(label.startswith("__label__") for label in labels) else None
    if call := _CALL.fullmatch(text):
        text = call[1] or "[]"
    if text[:1] not in _BRACKETS or text[-1:] != _BRACKETS.get(text[:1]):
        return None
    inside = text[1:-1]
    if not _QUOTED.sub("", inside).strip(", \r\n\t"):
        return [_unquoted(label) for label in _QUOTED.findall(inside)]
    if inside[:1] in _BRACKETS or text in ("[null]", "[None]"):
        with suppress(ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            return [None] if inside == "null" else list(ast.literal_eval(text))
    bare = [part for part in re.split(r"[,\s]+", inside) if part]
    if bare and all(not np.isnan(as_number(part)) for part in bare):
        return bare if text[0] != "(" or "," in inside else None
    return inside.split(",") if text[0] != "(" and "," in inside and not _QUOTED.search(inside) else None


def parts_of(cell: Any, separator: str) -> list[Any]:
    """The labels in a cell that holds a list, or labels with ``separator`` between them; without blanks."""
    parts = listed(cell)
    if parts is None:
        parts = cell.split(separator) if isinstance(cell, str) else [cell]
    return [part for part in parts if not is_blank(part)]


def is_object(value: Any) -> bool:
    """Whether a cell holds a mapping, or spells one in JSON or Python, alone or in a list."""
    if isinstance(value, str):
        text = value.strip()
        return text.startswith(("{", "[{", "[ {")) and re.search(r"""["'0-9]\s*:""", text) is not None
    return any(isinstance(item, dict) for item in listed(value) or [value])


def _unquoted(text: str) -> str:
    with suppress(ValueError, SyntaxError):
        return str(json.loads(text) if text[0] == '"' else ast.literal_eval(text))
    return text[1:-1]


def as_label(value: Any) -> str | None:
    """A raw label as the name of a class; None if it is blank.

    1, 1.0 and "1" are the same; "+1" and a code such as "007" are names. Unicode form and surrounding white space do
    not matter. A boolean, or a usual spelling of one, is ``true`` or ``false``. A list of one label is that label, and
    an empty list is a blank.
    """
    while (labels := listed(value)) is not None and len(labels) < 2:
        value = labels[0] if labels else None
    if is_blank(value):
        return None
    if is_nested(value):
        return json.dumps(shortened(value, 10**6))
    if isinstance(value, bool | np.bool_):
        return str(value).lower()
    text = str(value)
    if whole := _WHOLE.fullmatch(text):
        return whole[1]
    if text.strip() in _BOOLEANS:
        return text.strip().lower()
    number = number_of_class(text)
    is_whole = abs(number) < _MOST_EXACT and number == int(number)
    return str(int(number)) if is_whole else same_form(text)


def as_number(value: Any) -> float:
    """The finite number that ``value`` is or spells, else NaN; spaces or apostrophes may group its thousands."""
    if isinstance(value, str):
        value = value.replace("\u2212", "-")  # the minus of typesetters
        if _GROUPED.fullmatch(value):
            value = _NO_DIGIT.sub("", value)
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return float("nan")
    return number if np.isfinite(number) else float("nan")


def number_of_class(value: Any) -> float:
    """The number that ``value`` is or spells as a label, else NaN, also for codes and for grouped thousands."""
    is_name = is_code(value) or (isinstance(value, str) and _GROUPED.fullmatch(value) is not None)
    return float("nan") if is_name else as_number(value)


def is_code(value: Any) -> bool:
    """Whether ``value`` is a text such as 007, 1_0 or 1E5, which ``float`` accepts but its author did not mean as one.

    Read as numbers, different codes would coincide: 007 and 07 are both 7.
    """
    return isinstance(value, str) and _CODE.match(value) is not None and not np.isnan(as_number(value))
