"""Comma- and tab-separated text.

It is read strictly: what another reader would guess at is refused, with its line. A stray quote would swallow the rows
that follow into one cell. A row with a cell too many or too few would shift its texts by a column. A skipped blank line
would shift every later prediction by a row.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from pipeline.data.formats.base import Format, Table, column_names
from pipeline.data.formats.encoding import decode
from pipeline.system.errors import PipelineError

if TYPE_CHECKING:
    import pandas as pd

DELIMITERS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar"}
_LINE_BREAK = re.compile(r"\r\n|\r|\n")
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
_SEPARATOR_LINE = re.compile(r'"?sep=([^"\w\s]|\t)"?(?=\r\n|\r|\n)', re.IGNORECASE)
_REMEDY = 'write a text with quotes as "He said ""yes""", or use jsonl'
_LOOKED_AT, _HEAD = 200, 500_000  # rows and characters that show how a file is laid out


class _Layout(NamedTuple):
    separator: str
    blanks: bool = False
    """Whether a blank follows each delimiter and is no part of the cell."""
    trailing: int = 0
    """How many delimiters end every row, but not the header; below 0: the header, but no row."""


def read(content: bytes, where: str, *, strict: bool, suffix: str) -> Table:
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
    if strict:
        layout = _Layout("\t" if suffix == "tsv" or _has_tabs_alone(text) else ",")
    elif named := _SEPARATOR_LINE.match(text):
        layout, text = _Layout(named[1]), text[named.end() :]  # the line break stays, so that lines keep their numbers
    else:
        layout = _layout(text)
    if not strict:
        text = _without_blanks_at_quotes(text, layout.separator)
    rows = _parse(text, where, layout, strict)
    return Table(rows, f"{suffix}, {encoding}, {DELIMITERS.get(layout.separator, layout.separator)}")


def _without_blanks_at_quotes(text: str, separator: str) -> str:
    """``"Hi" , "good"`` as ``"Hi","good"``. Quoted cells are matched whole, so that blanks inside them stay."""
    mark, blank = re.escape(separator), r"[ \t\u00a0]".replace(r"\t" if separator == "\t" else "", "")
    if not re.search(rf'"{blank}|{blank}"', text):
        return text
    cell = rf'(?:\A|(?<=[{mark}\r\n])){blank}*+("(?:[^"]|"")*+"){blank}*+(?=[{mark}\r\n]|\Z)'
    return re.sub(cell, r"\1", text)


def _has_tabs_alone(text: str) -> bool:
    header = next(_sample(text, _Layout(",")), [])
    return len(header) == 1 and "\t" in header[0]


def _sample(text: str, layout: _Layout) -> Iterator[list[str]]:
    """The cells of the first rows that are not blank, whatever is wrong with their quotes."""
    _allow_cells(len(text))
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
                has_blanks = any(any(column) and _all_begin_blank(column) for column in columns)
            fits[_Layout(separator, blanks, trailing)] = round(alike, 1), width, blanks == has_blanks
    return max(fits, key=fits.__getitem__, default=_Layout(","))


def _all_begin_blank(column: Iterable[str]) -> bool:
    return all(cell.startswith(" ") for cell in column if cell)


def _parse(text: str, where: str, layout: _Layout, strict: bool) -> pd.DataFrame:
    import pandas as pd

    separator = layout.separator
    # Tab-separated files often quote nothing; if every text is quoted, no quote can open a cell by accident.
    trusted = separator != "\t" or text.lstrip("\r\n").startswith('"')
    numbered = _numbered_rows(text, layout, where)
    header = next((cells for _, _, cells in numbered if cells), None)
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
            remedy = (other_delimiter(header) if strict else None) or _width_remedy(cells, width, separator)
            raise PipelineError(f"{where}: line {first} has {count}, and the header {width}: {remedy}")
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
    return pd.DataFrame(dict(enumerate(columns)), dtype=object).set_axis(column_names(header), axis=1)


def other_delimiter(columns: Iterable[str]) -> str | None:
    """What to do where the names of all columns stand in one, as another delimiter separates them; else None."""
    names = list(map(str, columns))
    delimiter = next((mark for mark in ";\t|" if len(names) == 1 and mark in names[0]), None)
    if delimiter is None:
        return None
    return f"its columns seem to be separated by {delimiter!r}: save it with commas, or let tasks new read it"


def _width_remedy(cells: list[str], width: int, separator: str) -> str:
    if len(cells) < width:
        return "write every cell, empty ones too"
    title = "delete the lines above the header, if there are any, or " if width == 1 else ""
    ends = "" if any(cells[width:]) else f", or delete {separator!r} at the end of lines"
    return f"{title}quote text that contains {separator!r}{ends}"


def _lines(text: str) -> Iterator[str]:
    """Lines with their ends. Line breaks inside quotes stay as written; StringIO would take four bytes a character."""
    return (match[0] for match in _LINE.finditer(text))


def _allow_cells(letters: int) -> None:
    csv.field_size_limit(max(csv.field_size_limit(), letters))


def _numbered_rows(text: str, layout: _Layout, where: str) -> Iterator[tuple[int, int, list[str]]]:
    """The cells of each row, with the numbers of its first and last line, from 1; a blank line has no cells."""
    _allow_cells(len(text))
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


def write(table: pd.DataFrame, file: Any, *, separator: str = ",") -> None:
    # A text is read back wrongly unless all are quoted, the header too: minimal quoting leaves a carriage return
    # unquoted, which ends the row; line breaks and tabs in one cell look like rows that a stray quote has swallowed.
    texts = [cell for column in table for cell in table[column] if isinstance(cell, str)]
    quoted = any("\r" in text or (separator == "\t" and "\n" in text and "\t" in text) for text in texts)
    quoting: Any = csv.QUOTE_NONNUMERIC if quoted else csv.QUOTE_MINIMAL
    table.to_csv(file, sep=separator, index=False, quoting=quoting)


def check(table: pd.DataFrame) -> None:
    table.to_csv(index=False).encode()


CSV = Format((".csv",), partial(read, suffix="csv"), write, check, usual="csv, utf-8(-sig)?, comma")
TSV = Format(
    (".tsv",), partial(read, suffix="tsv"), partial(write, separator="\t"), check, usual="tsv, utf-8(-sig)?, tab"
)
