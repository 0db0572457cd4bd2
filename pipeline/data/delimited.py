"""Bytes as text, in whatever encoding another program wrote them; and comma- and tab-separated text.

A table is read strictly: what another reader would guess at is refused, with its line. A stray quote would swallow the
rows that follow into one cell. A row with a cell too many or too few would shift its texts by a column. A skipped blank
line would shift every later prediction by a row.
"""

from __future__ import annotations

import codecs
import csv
import re
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from pipeline.system.errors import PipelineError
from pipeline.system.streams import notice

if TYPE_CHECKING:
    import pandas as pd

_MARKS = {  # in this order, because UTF-32's mark begins with UTF-16's
    codecs.BOM_UTF32_LE: "utf-32", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16",
    codecs.BOM_UTF8: "utf-8-sig",
}  # fmt: skip
_OTHER_ALPHABETS = (
    "cp1251", "koi8_r", "cp1253", "cp1255", "cp1256", "cp874", "gb18030", "big5", "cp932", "euc_jp", "cp949",
)  # fmt: skip
_ASCII_LETTER, _ACCENTED_LETTER = re.compile("[A-Za-z]"), re.compile(r"[^\W\d_A-Za-z]")
_MOST_ACCENTED = 1 / 3
_TELLING = 0.02
"""Between the coherence of an encoding and the next one's: how much of the letters' frequencies fits a language."""
_FEWEST_NULLS = 1 / 20
DELIMITERS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar"}
_LINE_BREAK = re.compile(r"\r\n|\r|\n")
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
_SEPARATOR_LINE = re.compile(r'"?sep=([^"\w\s]|\t)"?(?=\r\n|\r|\n)', re.IGNORECASE)
_REMEDY = 'write a text with quotes as "He said ""yes""", or use jsonl'
_LOOKED_AT, _HEAD = 200, 500_000  # rows and characters that show how a file is laid out
_UNNAMED = re.compile(r"Unnamed: [0-9]+")


def decode(content: bytes, where: str, *, strict: bool) -> tuple[str, str]:
    """The text of ``content`` and the name of its encoding.

    Text is UTF-8, UTF-16, or else cp1252 (Windows, Western Europe) unless more than a third of its letters would be
    accented ones: then charset-normalizer tells the encoding of another alphabet. It takes Spanish and Turkish for
    cp1250, so it is not asked about Western text.

    Args:
        strict: only UTF-8, with or without a byte order mark.

    Raises:
        PipelineError: the encoding cannot be told, or most lines are UTF-8 and some are not.
        UnicodeDecodeError: ``strict`` text is not UTF-8.
    """
    if strict:
        return content.decode("utf-8-sig"), "utf-8"
    encoding = next((encoding for mark, encoding in _MARKS.items() if content.startswith(mark)), None)
    encoding = encoding or _wide(content) or "utf-8"
    text = _decoded(content, encoding)
    if text is None and encoding == "utf-8":
        other = [(number, line) for number, line in enumerate(content.split(b"\n"), start=1) if not line.isascii()]
        bad = [number for number, line in other if _decoded(line, "utf-8") is None]
        if 2 * len(bad) < len(other):
            raise PipelineError(
                f"{where}: line {bad[0]} is not UTF-8, but {len(other) - len(bad)} other lines with such letters are:"
                " save the file as UTF-8 where it comes from"
            )
        text, encoding = _decoded(content, "cp1252"), "cp1252"
        if text is None or "\0" in text or _accented(text) > _MOST_ACCENTED:
            text, encoding = _guessed(content)
    if text is None:
        raise PipelineError(f"{where}: its encoding cannot be told: save it as UTF-8")
    return text, encoding


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


def _accented(text: str) -> float:
    """The share of the letters that are not ASCII: 3 % in German, 12 % in Icelandic; nearly all of misread Cyrillic."""
    ascii_letters, accented = len(_ASCII_LETTER.findall(text)), len(_ACCENTED_LETTER.findall(text))
    return accented / max(1, ascii_letters + accented)


def column_names(header: Iterable[object]) -> list[str]:
    """The names in a ``header``; a column without one is called by its position, as pandas does."""
    names = ["" if name is None else str(name) for name in header]
    return [name if name.strip() else f"Unnamed: {place}" for place, name in enumerate(names)]


def is_unnamed(column: str) -> bool:
    return _UNNAMED.fullmatch(column) is not None


class _Layout(NamedTuple):
    separator: str
    blanks: bool = False
    """Whether a blank follows each delimiter and is no part of the cell."""
    trailing: int = 0
    """How many delimiters end every row, but not the header; below 0: the header, but no row."""


def read(content: bytes, where: str, *, strict: bool, suffix: str) -> tuple[pd.DataFrame, str]:
    """The table with cells as written; an empty cell is None.

    A blank line is a row of empty cells, except before the header and at the end. Columns without a name are called
    ``Unnamed: 0`` and so on, by their position.

    The delimiter of a ``strict`` table is a tab for tsv, or where the header has tabs and no commas, as some releases
    name such files; else a comma. Otherwise it is the one that a first line such as ``sep=;`` names for Excel, or else
    the one of :data:`DELIMITERS` that cuts most of the first rows into as many cells as the header. Blanks after every
    delimiter are dropped, as are blanks between a quote and a delimiter, and delimiters that end every row, or the
    header alone.
    """
    text, encoding = decode(content, where, strict=strict)
    csv.field_size_limit(max(csv.field_size_limit(), len(text)))
    named = None if strict else _SEPARATOR_LINE.match(text)
    if strict:
        header = next(_sample(text, _Layout(",")), [])
        layout = _Layout("\t" if suffix == "tsv" or (len(header) == 1 and "\t" in header[0]) else ",")
    elif named:
        layout, text = _Layout(named[1]), text[named.end() :]  # the line break stays, so that lines keep their numbers
    else:
        layout = _layout(text)
    if not strict:
        text = _without_blanks_at_quotes(text, layout.separator)
    form = f"{suffix}, {encoding}, {DELIMITERS.get(layout.separator, layout.separator)}"
    rows = _parse(text, where, layout)
    return rows.set_axis(rows.index - (named is not None)), form


def _without_blanks_at_quotes(text: str, separator: str) -> str:
    """``"Hi" , "good"`` as ``"Hi","good"``. Quoted cells are matched whole, so that blanks inside them stay."""
    mark, blank = re.escape(separator), r"[ \t\u00a0]".replace(r"\t" if separator == "\t" else "", "")
    if not re.search(rf'"{blank}|{blank}"', text):
        return text
    cell = rf'(?:\A|(?<=[{mark}\r\n])){blank}*+("(?:[^"]|"")*+"){blank}*+(?=[{mark}\r\n]|\Z)'
    return re.sub(cell, r"\1", text)


def _sample(text: str, layout: _Layout) -> Iterator[list[str]]:
    """The cells of the first rows that are not blank, whatever is wrong with their quotes."""
    rows = csv.reader(_lines(text), delimiter=layout.separator, skipinitialspace=layout.blanks)
    return islice((cells for cells in rows if cells), _LOOKED_AT)


def _layout(text: str) -> _Layout:
    """The layout with most cells in the header of those that cut nearly all first rows alike; commas if none does.

    Texts hold commas, so a comma makes rows of many lengths where another character is the delimiter.
    """
    fits: dict[_Layout, tuple[float, int, bool]] = {}
    for separator in DELIMITERS:
        has_blanks, head = False, _without_blanks_at_quotes(text[:_HEAD], separator)
        for blanks in (False, True):
            header, *rows = list(_sample(head, _Layout(separator, blanks))) or [[]]
            if (width := len(header)) < 2:
                continue
            rows = rows if len(head) < _HEAD else rows[:-1]  # which may be cut
            trailing = len(rows[0]) - width if len(rows) > 1 else 0
            beyond = [header[width + trailing :], *(cells[width:] for cells in rows)]
            if any(map(any, beyond)) or any(len(cells) != width + trailing for cells in rows):
                trailing = 0
            alike = sum(len(cells) == width + trailing for cells in rows) / max(1, len(rows))
            if not blanks:
                columns = ([cells[place] for cells in rows if cells[place:]] for place in range(1, width))
                has_blanks = any(any(own) and all(cell.startswith(" ") for cell in own if cell) for own in columns)
            fits[_Layout(separator, blanks, trailing)] = round(alike, 1), width, blanks == has_blanks
    if not fits:  # a single column, whose texts may hold commas; where all rows have one, names of columns are missing
        head = text[:_HEAD]
        sizes = {each: {len(cells) for cells in [*_sample(head, _Layout(each))][1:]} for each in DELIMITERS}
        if len(sizes[","]) > 1:
            return _Layout(next((each for each in DELIMITERS if sizes[each] == {1}), ","))
    return max(fits, key=fits.__getitem__, default=_Layout(","))


def _parse(text: str, where: str, layout: _Layout) -> pd.DataFrame:
    import pandas as pd

    separator = layout.separator
    # Tab-separated files often quote nothing; if every text is quoted, no quote can open a cell by accident.
    trusted = separator != "\t" or text.lstrip("\r\n").startswith('"')
    numbered = _numbered_rows(text, layout, where)
    number, header = next(((number, cells) for number, (_, _, cells) in enumerate(numbered, 1) if cells), (0, None))
    if header is None:
        raise PipelineError(f"{where}: no rows: the file is empty")
    header = header[: len(header) + min(0, layout.trailing)]
    width = len(header)
    columns, end = [list[str | None]() for _ in header], 0
    for first, last, cells in numbered:
        if not cells or (len(cells) == 1 < width and not cells[0].strip()):
            for column in columns:
                column.append(None)
            continue
        if layout.trailing and len(cells) == width + layout.trailing and not any(cells[width:]):
            del cells[width:]
        if len(cells) != width:
            count = "1 cell" if len(cells) == 1 else f"{len(cells)} cells"
            raise PipelineError(
                f"{where}: line {first} has {count}, and the header {width}: quote text that contains {separator!r},"
                " write empty cells too, and delete lines above the header, if there are any"
            )
        if last > first and not trusted and width > 1 and _holds_rows(cells):
            raise PipelineError(
                f"{where}: the quote that opens a cell in line {first} closes in line {last}, with whole rows between:"
                f" {_REMEDY}"
            )
        for column, cell in zip(columns, cells, strict=True):
            column.append(cell or None)
        end = len(columns[0])
    for column in columns:
        del column[end:]
    index = pd.RangeIndex(number + 1, number + 1 + end)
    return pd.DataFrame(dict(enumerate(columns)), index, dtype=object).set_axis(column_names(header), axis=1)


def _lines(text: str) -> Iterator[str]:
    """Lines with their ends. Line breaks inside quotes stay as written; StringIO would take four bytes a character."""
    return (match[0] for match in _LINE.finditer(text))


def _numbered_rows(text: str, layout: _Layout, where: str) -> Iterator[tuple[int, int, list[str]]]:
    """The cells of each row, with the numbers of its first and last line, from 1; a blank line has no cells."""
    reader = csv.reader(_lines(text), delimiter=layout.separator, skipinitialspace=layout.blanks, strict=True)
    line = 0
    try:
        for cells in reader:
            yield line + 1, reader.line_num, cells
            line = reader.line_num
    except csv.Error:
        raise PipelineError(
            f"{where}: the quote that opens a cell in line {line + 1} is not closed at the end of a cell: {_REMEDY}"
        ) from None


def _holds_rows(cells: list[str]) -> bool:
    """Whether a cell holds the end of one row and the start of another, as if a stray quote had opened it.

    From column p of k the rest of a row is k - 1 - p tabs, and the row in which the cell closes begins with p tabs.
    """
    for place, cell in enumerate(cells):
        lines = _LINE_BREAK.split(cell)
        tabs = lines[0].count("\t"), lines[-1].count("\t")
        if len(lines) > 1 and tabs == (len(cells) - 1 - place, place):
            return True
    return False


def write(table: pd.DataFrame, sink: BinaryIO, *, separator: str = ",", encoding: str = "utf-8") -> None:
    # A text is read back wrongly unless all are quoted, the header too: minimal quoting leaves a carriage return
    # unquoted, which ends the row; line breaks and tabs in one cell look like rows that a stray quote has swallowed.
    texts = [cell for column in table for cell in table[column] if isinstance(cell, str)]
    quoted = any("\r" in text or (separator == "\t" and "\n" in text and "\t" in text) for text in texts)
    quoting: Any = csv.QUOTE_NONNUMERIC if quoted else csv.QUOTE_MINIMAL
    text = table.to_csv(sep=separator, index=False, quoting=quoting)
    try:
        content = text.encode(encoding)
    except UnicodeEncodeError:
        content = text.encode("utf-8-sig")
        notice(f"note: {encoding} lacks letters of the table, which is written as UTF-8")
    sink.write(content)
