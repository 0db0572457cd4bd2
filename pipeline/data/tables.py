"""Read and write tables as parquet, csv, tsv or jsonl, by suffix; ``-`` is csv on standard input or output.

Comma- and tab-separated text is read strictly: what another reader would guess at is refused, with its line. A stray
quote would swallow the rows that follow into one cell. A row with a cell too many or too few would shift its texts by a
column. A skipped blank line would shift every later prediction by a row.
"""

import csv
import io
import json
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import pandas as pd
import pyarrow as pa

from pipeline.data.table_files import STANDARD, check_suffix, name_of
from pipeline.system.atomic import new_file
from pipeline.system.errors import PipelineError
from pipeline.system.reading import check_regular, reading

_LINE_BREAK = re.compile(r"\r\n|\r|\n")
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
_REMEDY = 'write a text with quotes as "He said ""yes""", or use jsonl'


def read_table(file: Path) -> pd.DataFrame:
    """Read a table; text stays as written ("NA" and "null" are words, only an empty cell is empty).

    A ``.csv`` whose header holds tabs and no commas is read as tab-separated, as some releases name such files. Row n
    of the result is the file's row n: no blank line is skipped. Whatever is wrong is a :class:`PipelineError`.
    """
    check_suffix(file)
    with reading(Path(name_of(file)), f"write it again as {file.suffix[1:] or 'csv'}", missing=""):
        if file == STANDARD:
            content = sys.stdin.buffer.read() if sys.stdin is not None else b""
            table = parse_delimited(_decode(content, name_of(file)), file)
        else:
            table = _read_file(file)
    return check_columns(table, file)


def check_columns(table: pd.DataFrame, file: Path) -> pd.DataFrame:
    """``table`` itself; a :class:`PipelineError` if two of its columns have the same name."""
    if repeated := table.columns[table.columns.duplicated()].tolist():
        raise PipelineError(f"{name_of(file)}: more than one column is called {repeated[0]!r}: give each another name")
    return table


def _read_file(file: Path) -> pd.DataFrame:
    check_regular(file)
    if file.suffix == ".parquet":
        return read_parquet(file)
    text = _decode(file.read_bytes(), str(file))
    return parse_jsonl(text, file) if file.suffix == ".jsonl" else parse_delimited(text, file)


def read_parquet(file: Path) -> pd.DataFrame:
    """The table of a parquet file. What pandas saved as a named index, such as ids, is a column again.

    A blank of a nullable type (``DataFrame.convert_dtypes``) is None, as other files have it, and not ``pd.NA``.
    """
    table = pd.read_parquet(file)
    named = [name for name in table.index.names if name is not None and name not in table]
    table = table.reset_index(named).reset_index(drop=True)
    for position, dtype in enumerate(table.dtypes):
        values = table.iloc[:, position]
        if getattr(dtype, "na_value", None) is pd.NA and values.hasnans:
            objects: Any = values.astype(object).where(values.notna(), None)  # Any: pandas-stubs leaves out Series here
            table.isetitem(position, objects)
    return table


def check_writable(table: pd.DataFrame, file: Path) -> None:
    """Raise a :class:`PipelineError` for the first column that the format of ``file`` cannot hold."""
    for column in table:
        try:
            if file.suffix == ".parquet":
                pa.Table.from_pandas(table[[column]], preserve_index=False)
            elif file.suffix == ".jsonl":
                _as_jsonl(table[[column]]).encode()
            else:
                table[[column]].to_csv(index=False).encode()
        except (ValueError, TypeError, RecursionError, OverflowError, pa.ArrowException) as error:
            kind = file.suffix[1:] or "csv"
            words = "text that no encoding can write" if isinstance(error, UnicodeError) else str(*error.args[:1])
            reason = words.partition("\n")[0][:200]
            raise PipelineError(f"column {column!r} cannot be written as {kind} ({reason}): leave it out") from None


def write_table(table: pd.DataFrame, file: Path) -> None:
    """Write a table in the format of its suffix; the file appears complete or not at all."""
    check_suffix(file)
    if file == STANDARD:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(encoding="utf-8")
        _write_delimited(table, sys.stdout, tabs=False)
        return
    with new_file(file) as temporary:
        if file.suffix == ".parquet":
            table.to_parquet(temporary, index=False, compression="zstd")
        elif file.suffix == ".jsonl":
            temporary.write_text(_as_jsonl(table), encoding="utf-8")
        else:
            _write_delimited(table, temporary, tabs=file.suffix == ".tsv")


def _as_jsonl(table: pd.DataFrame) -> str:
    # pandas' to_json keeps ten decimals of a float.
    rows = table.astype(object).where(table.notna(), None).to_dict("records")
    return "".join(json.dumps(row, ensure_ascii=False, default=_as_json) + "\n" for row in rows)


def _as_json(value: Any) -> Any:
    """What a parquet file may hold and JSON has no type for: arrays as lists, times and decimals as text."""
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else str(value)


def _write_delimited(table: pd.DataFrame, target: Path | TextIO, tabs: bool) -> None:
    # A text is read back wrongly unless all are quoted, the header too: minimal quoting leaves a carriage return
    # unquoted, which ends the row; line breaks and tabs in one cell look like rows that a stray quote has swallowed.
    texts = [cell for column in table for cell in table[column] if isinstance(cell, str)]
    quoted = any("\r" in text or (tabs and "\n" in text and "\t" in text) for text in texts)
    table.to_csv(
        target,
        sep="\t" if tabs else ",",
        index=False,
        quoting=csv.QUOTE_NONNUMERIC if quoted else csv.QUOTE_MINIMAL,
    )


def _decode(content: bytes, name: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        bad = []
        for number, line in enumerate(content.split(b"\n"), start=1):
            try:
                line.decode("utf-8-sig")
            except UnicodeDecodeError as error:
                bad.append(f"line {number}: {line[max(0, error.start - 10) : error.end + 10]!r}")
        raise PipelineError(
            f"{name}: text is not UTF-8 in {len(bad)} line(s): {'; '.join(bad[:3])}. Convert it, for example with"
            " iconv -f latin1 -t utf-8"
        ) from None


def parse_jsonl(text: str, file: Path) -> pd.DataFrame:
    """The table in ``text``, a JSON object a line; ``file`` is for messages."""
    rows = []
    for number, line in enumerate(text.rstrip().split("\n"), start=1):
        try:
            row = json.loads(line)
            problem = None if isinstance(row, dict) else "is not a JSON object"
        except RecursionError:
            problem = "is nested too deeply"
        except ValueError as error:
            problem = f"is not JSON: {error.msg if isinstance(error, json.JSONDecodeError) else error}"
        if not line.strip():
            # Other readers skip it, so pairing lines of this file with predictions would be a row off.
            raise PipelineError(
                f"{file}: line {number} is blank: delete it, so that each line is a row"
                if text.strip()
                else f"{file}: no rows: the file is empty"
            )
        if problem is not None:
            raise PipelineError(f"{file}: line {number} {problem}: {line[:60]!r}")
        rows.append(row)
    # dtype object keeps integers beside nulls as they were written.
    return pd.DataFrame(rows, dtype=object)


def parse_delimited(text: str, file: Path, separator: str | None = None) -> pd.DataFrame:
    """The table in ``text``, with cells as written; an empty cell is None.

    A blank line is a row of empty cells, except before the header and at the end. Columns without a name are called
    ``Unnamed: 0`` and so on, by their position. Without a ``separator`` it is a tab or a comma, by the suffix of
    ``file`` and the header.
    """
    first_line, is_foreign = header_line(text), separator is not None
    if separator is None:
        has_tabs_alone = "\t" in first_line and "," not in first_line
        separator = "\t" if file.suffix == ".tsv" or has_tabs_alone else ","
    # Tab-separated files often quote nothing; if every text is quoted, no quote can open a cell by accident.
    trusted = separator != "\t" or first_line.startswith('"')
    numbered = _numbered_rows(text, separator, file)
    header = next((cells for _, _, cells in numbered if cells), None)
    if header is None:
        raise PipelineError(f"{name_of(file)}: no rows: the file is empty")
    width = len(header)
    columns, end = [list[str | None]() for _ in header], 0
    for first, last, cells in numbered:
        if not cells or (len(cells) == 1 < width and not cells[0].strip()):
            for column in columns:
                column.append(None)
            continue
        if len(cells) != width:
            count = "1 cell" if len(cells) == 1 else f"{len(cells)} cells"
            remedy = (None if is_foreign else other_delimiter(header)) or _width_remedy(len(cells), width, separator)
            raise PipelineError(f"{name_of(file)}: line {first} has {count}, and the header {width}: {remedy}")
        if last > first and not trusted and width > 1 and _holds_rows(cells):
            raise PipelineError(
                f"{name_of(file)}: the quote that opens a cell in line {first} closes in line {last}, with whole rows"
                f" between: {_REMEDY}"
            )
        for column, cell in zip(columns, cells, strict=True):
            column.append(cell or None)
        end = len(columns[0])
    names = [name or f"Unnamed: {position}" for position, name in enumerate(header)]
    for column in columns:
        del column[end:]
    return pd.DataFrame(dict(enumerate(columns)), dtype=object).set_axis(names, axis=1)


def other_delimiter(columns: Iterable[str]) -> str | None:
    """What to do where the names of all columns stand in one, as another delimiter separates them; else None."""
    names = list(map(str, columns))
    delimiter = next((mark for mark in ";\t|" if len(names) == 1 and mark in names[0]), None)
    if delimiter is None:
        return None
    return f"its columns seem to be separated by {delimiter!r}: save it with commas, or let tasks new read it"


def _width_remedy(cells: int, width: int, separator: str) -> str:
    return f"quote text that contains {separator!r}" if cells > width else "write every cell, empty ones too"


def header_line(text: str) -> str:
    """The first line that is not blank."""
    text = text.lstrip("\r\n")
    line_break = _LINE_BREAK.search(text)
    return text if line_break is None else text[: line_break.start()]


def _numbered_rows(text: str, separator: str, file: Path) -> Iterator[tuple[int, int, list[str]]]:
    """The cells of each row, with the numbers of its first and last line, from 1; a blank line has no cells."""
    csv.field_size_limit(max(csv.field_size_limit(), len(text)))
    # Line breaks inside quotes stay as they are written. StringIO would take four bytes a character.
    lines = (match[0] for match in _LINE.finditer(text))
    reader = csv.reader(lines, delimiter=separator, strict=True)
    line = 0
    try:
        for cells in reader:
            yield line + 1, reader.line_num, cells
            line = reader.line_num
    except csv.Error:
        raise PipelineError(
            f"{name_of(file)}: the quote that opens a cell in line {line + 1} is not closed at the end of a cell:"
            f" {_REMEDY}"
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
