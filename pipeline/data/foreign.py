"""Read a table that another program wrote, whatever its encoding and delimiter."""

import codecs
import csv
import io
from collections import Counter
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import pandas as pd

from pipeline.data.tables import SUFFIXES, check_columns, header_line, parse_delimited, parse_jsonl, read_table
from pipeline.system.errors import PipelineError
from pipeline.system.reading import check_regular, reading

DELIMITERS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar"}
_LOOKED_AT = 200  # rows that show how many cells a delimiter makes
_SPREADSHEETS = (".xlsx", ".xls", ".ods")


@dataclass(frozen=True)
class ForeignTable:
    """The table of a file, and how the file is written."""

    rows: pd.DataFrame
    form: str
    """In words: ``csv, cp1252, semicolon``."""


def read_foreign(file: Path) -> ForeignTable:
    """Read csv, tsv, jsonl or parquet as :func:`read_table` does, in any of the encodings and delimiters in use.

    Text is UTF-8, UTF-16 if it starts with that byte order mark, or else cp1252 (Windows, Western Europe). The
    delimiter is the one of :data:`DELIMITERS` that cuts most of the first rows into as many cells as the header.

    Raises:
        PipelineError: the suffix is unknown, or the file cannot be read.
    """
    suffix = file.suffix.lower()
    if suffix in _SPREADSHEETS:
        raise PipelineError(f"{file}: a spreadsheet: save the sheet as csv, and give that")
    if suffix not in SUFFIXES:
        raise PipelineError(f"{file}: unknown suffix '{file.suffix}': use one of {', '.join(SUFFIXES)}")
    if suffix == ".parquet":
        # read_table knows the suffix in lower case alone.
        with reading(file, "write it again as parquet"):
            check_regular(file)
            table = read_table(file) if file.suffix == suffix else pd.read_parquet(file)
        return _named(table, file, "parquet")
    with reading(file, f"write it again as {suffix[1:]}"):
        check_regular(file)
        text, encoding = _decoded(file.read_bytes(), file)
        if suffix == ".jsonl":
            return _named(parse_jsonl(text, file), file, f"jsonl, {encoding}")
        separator = _delimiter(text)
        form = f"{suffix[1:]}, {encoding}, {DELIMITERS[separator]}"
        return _named(parse_delimited(text, file, separator), file, form)


def _named(table: pd.DataFrame, file: Path, form: str) -> ForeignTable:
    table = check_columns(table.set_axis([str(name) for name in table.columns], axis=1), file)
    if table.empty:
        raise PipelineError(f"{file}: no rows")
    return ForeignTable(table, form)


def _decoded(content: bytes, file: Path) -> tuple[str, str]:
    """The text and the name of its encoding."""
    marks = {codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16", codecs.BOM_UTF8: "utf-8-sig"}
    marked = [encoding for mark, encoding in marks.items() if content.startswith(mark)]
    for encoding in marked or ("utf-8", "cp1252"):
        try:
            text = content.decode(encoding)
        except UnicodeDecodeError:
            continue
        if "\0" not in text[:1000]:  # which UTF-16 without a mark has
            return text, encoding
    raise PipelineError(f"{file}: neither UTF-8 nor cp1252 text, nor UTF-16 with a byte order mark: save it as UTF-8")


def _delimiter(text: str) -> str:
    """The delimiter with most cells in the header of those that cut nearly all first rows alike; a comma if none does.

    Texts hold commas, so a comma makes rows of many lengths where another character is the delimiter.
    """
    csv.field_size_limit(max(csv.field_size_limit(), len(text)))
    found: dict[str, tuple[float, int]] = {}
    for separator in DELIMITERS:
        if separator not in header_line(text):
            continue
        reader = csv.reader(io.StringIO(text.lstrip("\r\n"), newline=""), delimiter=separator)
        widths = [len(cells) for cells in islice(reader, _LOOKED_AT) if cells]
        alike = Counter(widths)[widths[0]] / len(widths)
        found[separator] = (alike, widths[0])
    return max(found, key=lambda separator: (round(found[separator][0], 1), found[separator][1]), default=",")
