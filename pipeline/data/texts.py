"""Single texts, and inputs typed by hand. Imports nothing heavy, so commands can check at once."""

import re
import unicodedata
from collections.abc import Iterable
from typing import Any

from pipeline.system.errors import PipelineError, shortened

BROKEN = "invalid Unicode (an unpaired surrogate), which no encoding can write"
_SURROGATE = re.compile("[\ud800-\udfff]")
# Thai, Lao, Tibetan, Burmese, Khmer; kana; Chinese characters; kana of half width; rare Chinese characters.
_UNSPACED = (
    r"\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f"
    r"\U00020000-\U0003ffff"
)
_WORD = re.compile(rf"[{_UNSPACED}]|[^\s{_UNSPACED}]+")


def same_form(text: str) -> str:
    """``text`` normalised for comparing names: one Unicode form, no outer white space, no null characters."""
    return unicodedata.normalize("NFC", text.replace("\0", "")).strip()


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
