"""Read and write tables in any of :data:`FORMATS`; ``-`` is csv on standard input or output.

The modules of formats import pandas and other heavy libraries inside their functions, so that a command can check
files before its libraries load.
"""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

from pipeline.data import delimited, typed
from pipeline.system import atomic
from pipeline.system.errors import PipelineError, writing
from pipeline.system.reading import check_regular, reading
from pipeline.system.streams import notice

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

STANDARD = Path("-")
"""In place of a file name: standard input or output, as csv."""


@dataclass(frozen=True)
class Table:
    """A table that was read, and how its file is written."""

    rows: pd.DataFrame
    form: str
    """In words: ``csv, cp1252, semicolon``."""


class Reader(Protocol):
    def __call__(self, content: bytes, where: str, *, strict: bool) -> tuple[pd.DataFrame, str]:
        """The table in ``content``, as it is written, and its :attr:`Table.form`; ``where`` is the file, for messages.

        The index of the table has the numbers of its rows, for messages: those that a spreadsheet program shows, where
        the header is usually row 1 and a cell may have several lines. Rows of JSON lines, JSON and parquet, which have
        no header, count from 1; those of JSON lines are its lines.

        Args:
            strict: read only what this project writes, and guess at nothing: for splits, whose rows must be those that
                another reader finds.

        Raises:
            PipelineError: the content is no such table. Errors of the format's library may be raised too.
        """
        ...


@dataclass(frozen=True)
class Format:
    """A file format of tables."""

    read: Reader
    write: Callable[[pd.DataFrame, BinaryIO], object]
    magic: bytes = b""
    """The first bytes of every such file, by which it is recognised under any suffix; empty for text."""
    is_exact: bool = True
    """Whether what was written is read back to the last digit and the last blank row, as splits need it."""


def _read_parquet(content: bytes, where: str, *, strict: bool) -> tuple[pd.DataFrame, str]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    return as_pandas(pq.read_table(pa.BufferReader(content))), "parquet"


def _write_parquet(table: pd.DataFrame, sink: BinaryIO) -> None:
    table.to_parquet(sink, index=False, compression="zstd")


FORMATS = {
    ".parquet": Format(_read_parquet, _write_parquet, magic=b"PAR1"),
    ".csv": Format(partial(delimited.read, suffix="csv"), delimited.write),
    ".tsv": Format(partial(delimited.read, suffix="tsv"), partial(delimited.write, separator="\t")),
    ".jsonl": Format(typed.read_json_lines, typed.write_json_lines),
    ".json": Format(typed.read_json, typed.write_json),
    ".xlsx": Format(typed.read_xlsx, typed.write_xlsx, magic=b"PK\x03\x04", is_exact=False),
}
"""By suffix."""
SUFFIXES = tuple(FORMATS)
_JSON, _DELIMITED = (".jsonl", ".json"), (".csv", ".tsv")
_USUAL = re.compile(r"parquet|csv, utf-8(-sig)?, comma|tsv, utf-8(-sig)?, tab|jsonl?, utf-8(-sig)?")
"""How this project writes tables: no notice says how such a file was read."""
_OTHER_SPREADSHEETS, _OLE = (".xls", ".xlsm", ".xlsb", ".ods"), bytes.fromhex("d0cf11e0a1b11ae1")
_OBJECTS, _HEADER = re.compile(rb'\s*(\{\s*"[^"]*"\s*:|\[\s*\{)'), re.compile(rb"[A-Za-z_#][\w #]*[,;\t|].*\n.*[,;\t|]")


def suffix_of(file: Path) -> str:
    """The key of the format of ``file`` in :data:`FORMATS`; a :class:`PipelineError` if there is none."""
    suffix = ".csv" if file == STANDARD else file.suffix.lower()
    if suffix in _OTHER_SPREADSHEETS:
        raise PipelineError(f"{file}: a spreadsheet: save it as xlsx or csv, and give that")
    if suffix not in FORMATS:
        raise PipelineError(f"{file}: unknown suffix '{file.suffix}': use one of {', '.join(SUFFIXES)}")
    return suffix


def name_of(file: Path) -> str:
    """The name of the input ``file`` in messages."""
    return "standard input" if file == STANDARD else str(file)


def read_table(file: Path) -> pd.DataFrame:
    """Read a table; text stays as written ("NA" and "null" are words, only an empty cell is empty).

    Row n of the result is row n of the file: no blank line is skipped. Any fault raises a :class:`PipelineError`.
    """
    return _read(file, strict=True).rows


def read_foreign(file: Path) -> Table:
    """Read a table that another program wrote in any format, text in any usual encoding and delimiter.

    Raises:
        PipelineError: the suffix is unknown, or the file cannot be read or has no rows.
    """
    table = _read(file, strict=False)
    if table.rows.empty:
        raise PipelineError(f"{file}: no rows")
    names = [str(name).strip() for name in table.rows.columns]
    return Table(table.rows.set_axis(names, axis=1), table.form) if len({*names}) == len(names) else table


def read_input(file: Path) -> Table:
    """The table for a trained model: from a file (:func:`read_foreign`), or csv from standard input.

    A note on stderr says how the file was read, unless it has this project's format.
    """
    if file == STANDARD:
        return Table(read_table(file), "csv, utf-8, comma")
    table = read_foreign(file)
    if not _USUAL.fullmatch(table.form):
        notice(f"note: {file} was read as {table.form}")
    return table


def _read(file: Path, *, strict: bool) -> Table:
    suffix, where = suffix_of(file), name_of(file)
    with reading(Path(where), f"write it again as {suffix[1:]}", missing=""):
        if file == STANDARD:
            content = sys.stdin.buffer.read() if sys.stdin is not None else b""
        else:
            check_regular(file)
            content = file.read_bytes()
        rows, form = FORMATS[_recognised(content, suffix, where)].read(content, where, strict=strict)
    if repeated := rows.columns[rows.columns.duplicated()].tolist():
        raise PipelineError(f"{where}: more than one column is called {repeated[0]!r}: give each another name")
    return Table(rows, form)


def _recognised(content: bytes, suffix: str, where: str) -> str:
    """The suffix for ``content``, whose file may have another one: a spreadsheet saved as ``.csv``."""
    if content.startswith(_OLE):
        raise PipelineError(f"{where}: a spreadsheet of an old kind or with a password: save it as xlsx or csv")
    for other, form in FORMATS.items():
        if form.magic and content.startswith(form.magic):
            return other
    if magic := FORMATS[suffix].magic:
        return ".csv" if b"\0" not in content and b"\n" in content and content[:2] != magic[:2] else suffix
    if _OBJECTS.match(content):
        return suffix if suffix == ".jsonl" and content.lstrip()[:1] == b"{" else ".json"
    return ".csv" if suffix in _JSON and _HEADER.match(content) else suffix


def check_output(output_file: Path, input_file: Path, option: str = "--output") -> None:
    """Fail before any work is done if the table cannot be written, or would replace the input."""
    suffix_of(output_file)
    if output_file == STANDARD:
        return
    with writing(output_file):
        if output_file.is_dir():
            raise PipelineError(f"{option} {output_file}: this is a folder: name a file in it")
        is_file = input_file != STANDARD and input_file.exists()
        if is_file and output_file.exists() and output_file.samefile(input_file):
            raise PipelineError(f"{option} {output_file} is the input file, which would be lost: name another file")
    atomic.check_writable(output_file)


def check_columns(table: pd.DataFrame, file: Path) -> None:
    """Raise a :class:`PipelineError` for the first column that the format of ``file`` cannot hold."""
    import pyarrow as pa

    suffix = suffix_of(file)
    for column in table:
        try:
            FORMATS[suffix].write(table[[column]], io.BytesIO())
        except (ValueError, TypeError, RecursionError, OverflowError, pa.ArrowException) as error:
            words = "text that no encoding can write" if isinstance(error, UnicodeError) else str(*error.args[:1])
            reason = words.partition("\n")[0][:200]
            raise PipelineError(
                f"column {column!r} cannot be written as {suffix[1:]} ({reason}): leave it out"
            ) from None


def write_table(table: pd.DataFrame, file: Path, like: str = "") -> None:
    """Write a table in the format of its suffix; the file appears complete or not at all.

    Args:
        like: the :attr:`Table.form` of a table whose encoding, delimiter or sheet it takes, where the format has them.
    """
    if file == STANDARD:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(encoding="utf-8")
        delimited.write(table, content := io.BytesIO())
        sys.stdout.write(content.getvalue().decode())
        return
    write = _written_like(suffix_of(file), like)
    with atomic.new_file(file) as temporary, temporary.open("wb") as sink:
        write(table, sink)


def _written_like(suffix: str, form: str) -> Callable[[pd.DataFrame, BinaryIO], object]:
    """How to write a table with this suffix as one of ``form`` was written."""
    kind, *parts = form.split(", ")
    if suffix == ".xlsx" and kind == "xlsx":
        return partial(typed.write_xlsx, title=parts[0].removeprefix("sheet "))
    if suffix not in _DELIMITED or f".{kind}" not in _DELIMITED:
        return FORMATS[suffix].write
    encoding, named = parts
    separators = {name: separator for separator, name in delimited.DELIMITERS.items()}
    usual = "\t" if suffix == ".tsv" else ","
    separator = separators.get(named, named) if f".{kind}" == suffix else usual
    return partial(delimited.write, encoding=encoding, separator=separator)


def as_pandas(table: pa.Table) -> pd.DataFrame:
    """An Arrow table in pandas, as other formats have it.

    Bytes that are UTF-8 are text: Spark, Impala and TensorFlow Datasets write strings so. What pandas saved as a named
    index, such as ids, is a column again. A blank of a nullable type (``DataFrame.convert_dtypes``) is None, not
    ``pd.NA``.
    """
    import pandas as pd
    import pyarrow as pa

    for place, field in enumerate(table.schema):
        kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
            try:
                text = table.column(place).cast(pa.large_string())
                table = table.set_column(place, field.with_type(pa.large_string()), text)
            except pa.ArrowException:  # bytes that are no text, such as pictures
                continue
    rows = table.to_pandas()
    named = [name for name in rows.index.names if name is not None and name not in rows]
    rows = rows.reset_index(named).set_axis(pd.RangeIndex(1, len(rows) + 1))
    for position, dtype in enumerate(rows.dtypes):
        values = rows.iloc[:, position]
        if getattr(dtype, "na_value", None) is pd.NA and values.hasnans:
            objects: Any = values.astype(object).where(values.notna(), None)  # Any: pandas-stubs leaves out Series here
            rows.isetitem(position, objects)
    return rows
