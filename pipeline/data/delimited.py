"""Read comma- and tab-separated text strictly: refuse, with its line, what another reader would guess at.

A stray quote would swallow the rows that follow into one cell. A row with a cell too many or too few would shift its
texts by a column. A skipped blank line would shift every later prediction by a row.
"""

import csv
import io
import re
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from pipeline.system.errors import PipelineError

_LINE_BREAK = re.compile(r"\r\n|\r|\n")
_REMEDY = 'write a text with quotes as "He said ""yes""", or use jsonl'


def read_delimited(text: str, tabs: bool, file: Path) -> pd.DataFrame:
    """The table in ``text``, with cells as written; an empty cell is None.

    A blank line is a row of empty cells, except before the header and at the end. Columns without a name are called
    ``Unnamed: 0`` and so on, by their position.

    Args:
        tabs: whether tabs stand between cells, as they do in a ``.csv`` whose header holds tabs and no commas.
        file: named in messages.

    Raises:
        PipelineError: the text is empty, a row does not fit the header, or a quoted cell is not closed.
    """
    first_line = _LINE_BREAK.split(text.lstrip("\r\n"), maxsplit=1)[0]
    separator = "\t" if tabs or ("\t" in first_line and "," not in first_line) else ","
    # If every text is quoted, no quote can open a cell by accident.
    trusted = separator == "," or first_line.startswith('"')
    numbered = _numbered_rows(text, separator, file)
    header = next((cells for _, _, cells in numbered if cells), None)
    if header is None:
        raise PipelineError(f"{file}: no rows: the file is empty")
    rows, end = list[list[str]](), 0
    for first, last, cells in numbered:
        if _is_blank(cells, len(header)):
            rows.append([""] * len(header))
            continue
        if len(cells) != len(header):
            raise _ragged(file, first, cells, header, separator)
        if last > first and not trusted and len(cells) > 1 and _holds_rows(cells):
            raise PipelineError(
                f"{file}: the quote that opens a cell in line {first} closes in line {last}, with whole rows between:"
                f" {_REMEDY}"
            )
        rows.append(cells)
        end = len(rows)
    names = [name or f"Unnamed: {position}" for position, name in enumerate(header)]
    columns = zip(*rows[:end], strict=True) if end else ([] for _ in names)
    values = [[cell or None for cell in column] for column in columns]
    table = pd.DataFrame(dict(enumerate(values)), dtype=object)
    return table.set_axis(names, axis=1)


def _numbered_rows(text: str, separator: str, file: Path) -> Iterator[tuple[int, int, list[str]]]:
    """The cells of each row, with the numbers of its first and last line, from 1; a blank line has no cells."""
    csv.field_size_limit(max(csv.field_size_limit(), len(text)))
    # Line breaks inside quotes stay as they are written.
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    line = 0
    try:
        for cells in reader:
            yield line + 1, reader.line_num, cells
            line = reader.line_num
    except csv.Error:
        raise PipelineError(
            f"{file}: the quote that opens a cell in line {line + 1} is not closed at the end of a cell: {_REMEDY}"
        ) from None


def _is_blank(cells: list[str], width: int) -> bool:
    return not cells or (len(cells) == 1 < width and not cells[0].strip())


def _ragged(file: Path, line: int, cells: list[str], header: list[str], separator: str) -> PipelineError:
    count = "1 cell" if len(cells) == 1 else f"{len(cells)} cells"
    remedy = f"quote text that holds {separator!r}" if len(cells) > len(header) else "write every cell, empty ones too"
    return PipelineError(f"{file}: line {line} has {count}, and the header {len(header)}: {remedy}")


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
