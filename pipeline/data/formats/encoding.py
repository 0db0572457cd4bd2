"""Bytes as text, in whatever encoding another program wrote them."""

import codecs
import re

from pipeline.system.errors import PipelineError

_MARKS = {codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16", codecs.BOM_UTF8: "utf-8-sig"}
_OTHER_ALPHABETS = (
    "cp1251", "koi8_r", "cp1253", "cp1255", "cp1256", "cp874", "gb18030", "big5", "cp932", "euc_jp", "cp949",
)  # fmt: skip
_ASCII_LETTER, _ACCENTED_LETTER = re.compile("[A-Za-z]"), re.compile(r"[^\W\d_A-Za-z]")
_MOST_ACCENTED = 1 / 3
_TELLING = 0.02
"""Between the coherence of an encoding and the next one's: how much of the letters' frequencies fits a language."""
_FEWEST_NULLS = 1 / 20
_SHOWN = 10  # bytes on either side of one that is not UTF-8


def decode(content: bytes, where: str, *, strict: bool) -> tuple[str, str]:
    """The text of ``content`` and the name of its encoding.

    Text is UTF-8, UTF-16 if it starts with that byte order mark, or else cp1252 (Windows, Western Europe) unless more
    than a third of its letters would be accented ones: then charset-normalizer tells the encoding of another alphabet.
    It takes Spanish and Turkish for cp1250, so it is not asked about Western text.

    Args:
        strict: only UTF-8, with or without a byte order mark.

    Raises:
        PipelineError: the encoding cannot be told, or most lines are UTF-8 and some are not.
    """
    if strict:
        return _utf8(content, where), "utf-8"
    marked = next((encoding for mark, encoding in _MARKS.items() if content.startswith(mark)), None)
    if marked is not None:
        text = _decoded(content, marked)
    else:
        marked = _wide(content) or "utf-8"
        text = _decoded(content, marked)
        if text is None:
            _check_not_utf8(content, where)
            text, marked = _decoded(content, "cp1252"), "cp1252"
            if text is None or "\0" in text or _accented(text) > _MOST_ACCENTED:
                text, marked = _guessed(content)
    if text is None:
        raise PipelineError(f"{where}: its encoding cannot be told: save it as UTF-8")
    return text, marked


def _utf8(content: bytes, where: str) -> str:
    if (text := _decoded(content, "utf-8-sig")) is not None:
        return text
    bad = []
    for number, line in enumerate(content.split(b"\n"), start=1):
        try:
            line.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            bad.append(f"line {number}: {line[max(0, error.start - _SHOWN) : error.end + _SHOWN]!r}")
    raise PipelineError(
        f"{where}: text is not UTF-8 in {len(bad)} line(s): {'; '.join(bad[:3])}. Convert it, for example with iconv -f"
        " latin1 -t utf-8"
    )


def _decoded(content: bytes, encoding: str) -> str | None:
    try:
        return content.decode(encoding)
    except UnicodeDecodeError:
        return None


def _wide(content: bytes) -> str | None:
    """UTF-16 if the text is in it without a mark: ASCII is valid UTF-8 then, with every other byte null."""
    high, low = content[::2].count(0), content[1::2].count(0)
    if max(high, low) < _FEWEST_NULLS * len(content) or min(high, low) > max(high, low) / 10:
        return None
    return "utf-16-be" if high > low else "utf-16-le"


def _guessed(content: bytes) -> tuple[str | None, str]:
    # Here, not above: few files need it.
    from charset_normalizer import from_bytes

    matches = sorted(from_bytes(content, cp_isolation=list(_OTHER_ALPHABETS)), key=lambda match: -match.coherence)
    coherences = [match.coherence for match in matches] + [0.0, 0.0]
    # A few odd bytes among ASCII tell nothing, and the words of a few short rows may fit several alphabets.
    if coherences[0] - coherences[1] < _TELLING or _accented(text := str(matches[0])) <= _MOST_ACCENTED:
        return None, ""
    return text, matches[0].encoding.replace("_", "-")


def _check_not_utf8(content: bytes, where: str) -> None:
    """Raise a :class:`PipelineError` if most lines with letters beyond ASCII are UTF-8, and some are not."""
    other = [(number, line) for number, line in enumerate(content.split(b"\n"), start=1) if not line.isascii()]
    bad = [number for number, line in other if _decoded(line, "utf-8") is None]
    if 2 * len(bad) < len(other):
        raise PipelineError(
            f"{where}: line {bad[0]} is not UTF-8, but {len(other) - len(bad)} other lines with such letters are: fix"
            f" the {len(bad)} lines that are not, or save the file as UTF-8 where it comes from"
        )


def _accented(text: str) -> float:
    """The share of the letters that are not ASCII: 3 % in German, 12 % in Icelandic; nearly all of misread Cyrillic."""
    ascii_letters, accented = len(_ASCII_LETTER.findall(text)), len(_ACCENTED_LETTER.findall(text))
    return accented / max(1, ascii_letters + accented)
