"""Interpret a raw cell of a table, or a text: whether it is blank, and its value as a text, as a label and as a number.

All commands read cells by these functions, so ``predict`` and ``evaluate`` accept every file that ``tasks new`` does.
"""

import ast
import difflib
import json
import re
import unicodedata
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pandas as pd

from pipeline.data.labels import same_form
from pipeline.system.errors import PipelineError, shortened

BROKEN = "invalid Unicode (an unpaired surrogate), which no encoding can write"
_SURROGATE = re.compile("[\ud800-\udfff]")
# Thai, Lao, Tibetan, Burmese, Khmer; kana; Chinese characters; kana of half width; rare Chinese characters.
_UNSPACED = (
    r"\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f"
    r"\U00020000-\U0003ffff"
)
_WORD = re.compile(rf"[{_UNSPACED}]|[^\s{_UNSPACED}]+")
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
_NOT_ALPHANUMERIC = re.compile(r"[\W_]+")
_ASCII = bytes(range(128))
_NOT_ALPHANUMERIC_ASCII = bytes(code for code in _ASCII if not chr(code).isalnum())
_DIGITS = re.compile(r"[0-9]+")
_ALIKE = 0.85
"""Two labels are similar from this ratio of :mod:`difflib` on."""


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


def name_among(name: str, names: Iterable[str]) -> str | None:
    """``name`` if it is in ``names``, else the only one that differs just in Unicode form, case or outer blanks."""
    known = list(names)
    keys = [unicodedata.normalize("NFKC", same_form(str(each))).casefold() for each in (name, *known)]
    alike = [other for other, key in zip(known, keys[1:], strict=True) if key == keys[0]]
    return name if name in known else alike[0] if len(alike) == 1 else None


def count_words(text: str) -> int:
    """The number of words in ``text``; in scripts without spaces, of characters."""
    return len(text.split()) if text.isascii() else len(_WORD.findall(text))


def is_broken(value: Any) -> bool:
    """Whether a text holds a lone surrogate, which JSON can encode."""
    return isinstance(value, str) and not value.isascii() and _SURROGATE.search(value) is not None


def check_input(text: object, where: str, task: str, is_pair: bool) -> tuple[str, ...]:
    """The one or two texts of an input; a :class:`PipelineError` that names ``where`` it came from if it is unfit.

    Args:
        task: the name of the model's task.
        is_pair: whether the model reads pairs.
    """
    reads = 'a pair of texts, such as ["a", "b"]' if is_pair else "a single text"
    parts = tuple(text) if isinstance(text, tuple | list) else (text,)
    if isinstance(text, tuple | list) != is_pair or len(parts) != (2 if is_pair else 1):
        raise PipelineError(f"{where} is {shortened(text)}: task '{task}' reads {reads}")
    for part in parts:
        if not isinstance(part, str):
            raise PipelineError(f"{where} is {shortened(text)}: {shortened(part)} is not text (str)")
        if not part.strip():
            raise PipelineError(f"{where} is {shortened(text)}: a blank text has no prediction: leave it out")
        if is_broken(part):
            raise PipelineError(f"{where} is {shortened(text)}: {BROKEN}")
    return parts


def text_key(text: str) -> str:
    """``text`` without case, punctuation and white space, in one Unicode form.

    Two texts with the same key count as the same.
    """
    if text.isascii():  # most are: five times as fast, and every text is read several times
        key = text.encode().translate(None, _NOT_ALPHANUMERIC_ASCII).lower().decode()
    else:
        key = _NOT_ALPHANUMERIC.sub("", unicodedata.normalize("NFC", text).casefold())
    # Texts without letters and digits keep their punctuation: without it they would all be the same.
    return key or text


def nearest_class(cell: Any, classes: Sequence[str]) -> str:
    """A hint at the class that a text differs from only in case, space and punctuation, else at one spelt similarly.

    Empty if no class is similar, for a blank and for a number.
    """
    if not isinstance(cell, str) or is_blank(cell) or not np.isnan(as_number(cell)):
        return ""
    same = [name for name in classes if text_key(name) == text_key(cell)]
    return next((f" (did you mean {shortened(name)}?)" for name in [*same, *alike(cell, classes)]), "")


def alike(name: str, names: Sequence[str]) -> list[str]:
    """The most similar of ``names`` that have the digits of ``name``: Kat34 is no misspelt Kat35."""
    alike = difflib.get_close_matches(name, names, 3, _ALIKE)
    return [other for other in alike if _DIGITS.findall(other) == _DIGITS.findall(name)]
