"""Read a table that another program wrote, whatever its encoding and delimiter."""

import codecs
import csv
import io
import re
from collections import Counter
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import pandas as pd

from pipeline.data.table_files import SPREADSHEET, STANDARD, SUFFIXES
from pipeline.data.tables import check_columns, header_line, parse_delimited, parse_jsonl, read_parquet, read_table
from pipeline.system.errors import PipelineError, shortened
from pipeline.system.reading import check_regular, reading
from pipeline.system.streams import notice

_USUAL = re.compile(r"parquet|jsonl, utf-8(-sig)?|csv, utf-8(-sig)?, comma|tsv, utf-8(-sig)?, tab")
DELIMITERS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar"}
_SEPARATOR_LINE = re.compile(r'"?sep=([^"\w\s]|\t)"?(?=\r\n|\r|\n)', re.IGNORECASE)
_ASCII_LETTER, _ACCENTED_LETTER = re.compile("[A-Za-z]"), re.compile(r"[^\W\d_A-Za-z]")
_MOST_ACCENTED = 1 / 3
_LOOKED_AT = 200  # rows that show how many cells a delimiter makes
_OTHER_SPREADSHEETS = (".xls", ".xlsm", ".ods")


@dataclass(frozen=True)
class ForeignTable:
    """The table of a file, and how the file is written."""

    rows: pd.DataFrame
    form: str
    """In words: ``csv, cp1252, semicolon``."""


def read_foreign(file: Path) -> ForeignTable:
    """Read csv, tsv, jsonl or parquet as :func:`read_table` does, in any usual encoding and delimiter, or xlsx.

    Text is UTF-8, UTF-16 if it starts with that byte order mark, or else cp1252 (Windows, Western Europe), unless more
    than a third of its letters would be accented ones: then it is of another alphabet, and refused. The
    delimiter is the one that a first line such as ``sep=;`` names for Excel, or else the one of :data:`DELIMITERS` that
    cuts most of the first rows into as many cells as the header.

    Of a spreadsheet the one sheet with cells is read, whose first row names the columns.

    Raises:
        PipelineError: the suffix is unknown, or the file cannot be read.
    """
    suffix = file.suffix.lower()
    if suffix == SPREADSHEET:
        return _spreadsheet(file)
    if suffix in _OTHER_SPREADSHEETS:
        raise PipelineError(f"{file}: a spreadsheet: save it as xlsx or csv, and give that")
    if suffix not in SUFFIXES:
        known = ", ".join((*SUFFIXES, SPREADSHEET))
        raise PipelineError(f"{file}: unknown suffix '{file.suffix}': use one of {known}")
    if suffix == ".parquet":
        with reading(file, "write it again as parquet", missing=""):
            check_regular(file)
            table = read_parquet(file)
        return _named(table, file, "parquet")
    with reading(file, f"write it again as {suffix[1:]}", missing=""):
        check_regular(file)
        text, encoding = _decoded(file.read_bytes(), file)
        if suffix == ".jsonl":
            return _named(parse_jsonl(text, file), file, f"jsonl, {encoding}")
        if named := _SEPARATOR_LINE.match(text):
            separator, text = named[1], text[named.end() :]  # the line break stays, so that lines keep their numbers
        else:
            separator = _delimiter(text)
        form = f"{suffix[1:]}, {encoding}, {DELIMITERS.get(separator, separator)}"
        return _named(parse_delimited(text, file, separator), file, form)


def read_input(file: Path) -> pd.DataFrame:
    """The rows that a trained model is to read: of a file as :func:`read_foreign` takes it, or csv from standard input.

    How the file was read is said on stderr, unless it is written as this project writes its own.
    """
    if file == STANDARD:
        return read_table(file)
    table = read_foreign(file)
    if not _USUAL.fullmatch(table.form):
        notice(f"note: {file} was read as {table.form}")
    return table.rows


def _spreadsheet(file: Path) -> ForeignTable:
    remedy = "save the sheet as csv, and give that"
    with reading(file, remedy, missing=""):
        check_regular(file)
        content = file.read_bytes()
    try:
        # Empty cells become "", and words such as NA stay words.
        sheets = pd.read_excel(
            io.BytesIO(content), sheet_name=None, header=None, dtype=object, keep_default_na=False, engine="openpyxl"
        )
    except Exception as error:  # whatever its parsers raise for a file that is none
        raise PipelineError(f"{file}: cannot be read as xlsx ({shortened(str(error))}): {remedy}") from None
    filled = {name: cells for name, cells in sheets.items() if not cells.empty}
    if len(filled) > 1:
        raise PipelineError(f"{file}: {len(filled)} sheets have cells ({', '.join(map(str, filled))}): {remedy}")
    if not filled:
        raise PipelineError(f"{file}: no rows: the file is empty")
    ((sheet, cells),) = filled.items()
    names = [str(name) if str(name).strip() else f"Unnamed: {place}" for place, name in enumerate(cells.iloc[0])]
    rows = cells.iloc[1:].reset_index(drop=True).set_axis(names, axis=1)
    return _named(rows.where(rows != "", None), file, f"xlsx, sheet {sheet}")


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
        if "\0" in text[:1000]:  # which UTF-16 without a mark has
            continue
        if encoding == "cp1252":
            _check_not_utf8(content, file)
            if _accented(text) > _MOST_ACCENTED:
                raise PipelineError(
                    f"{file}: not UTF-8, and by its letters not cp1252 (Western Europe): save it as UTF-8"
                )
        return text, encoding
    raise PipelineError(f"{file}: neither UTF-8 nor cp1252 text, nor UTF-16 with a byte order mark: save it as UTF-8")


def _check_not_utf8(content: bytes, file: Path) -> None:
    """Raise a :class:`PipelineError` if most lines with letters beyond ASCII are UTF-8, and some are not."""
    other = [(number, line) for number, line in enumerate(content.split(b"\n"), start=1) if not line.isascii()]
    bad = [number for number, line in other if not _is_utf8(line)]
    if 2 * len(bad) < len(other):
        raise PipelineError(
            f"{file}: line {bad[0]} is not UTF-8, but {len(other) - len(bad)} other lines with such letters are: fix"
            f" the {len(bad)} lines that are not, or save the file as UTF-8 where it comes from"
        )


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _accented(text: str) -> float:
    """The share of the letters that are not ASCII: 3 % in German, 12 % in Icelandic; nearly all of misread Cyrillic."""
    ascii_letters, accented = len(_ASCII_LETTER.findall(text)), len(_ACCENTED_LETTER.findall(text))
    return accented / max(1, ascii_letters + accented)


def _delimiter(text: str) -> str:
    """The delimiter with most cells in the header of those that cut nearly all first rows alike; a comma if none does.

    Texts hold commas, so a comma makes rows of many lengths where another character is the delimiter.
    """
    csv.field_size_limit(max(csv.field_size_limit(), len(text)))
    fits: dict[str, tuple[float, int]] = {}
    for separator in DELIMITERS:
        if separator not in header_line(text):
            continue
        reader = csv.reader(io.StringIO(text.lstrip("\r\n"), newline=""), delimiter=separator)
        widths = [len(cells) for cells in islice(reader, _LOOKED_AT) if cells]
        alike = Counter(widths)[widths[0]] / len(widths)
        fits[separator] = (alike, widths[0])
    return max(fits, key=lambda separator: (round(fits[separator][0], 1), fits[separator][1]), default=",")
