"""Read and write tables in any of :data:`pipeline.data.formats.FORMATS`; ``-`` is csv on standard input or output."""

import io
import sys
from pathlib import Path

import pandas as pd
import pyarrow as pa

from pipeline.data.formats import Table, recognised
from pipeline.data.table_files import STANDARD, format_named, name_of
from pipeline.system.atomic import new_file
from pipeline.system.errors import PipelineError
from pipeline.system.reading import check_regular, reading


def read_table(file: Path) -> pd.DataFrame:
    """Read a table; text stays as written ("NA" and "null" are words, only an empty cell is empty).

    Row n of the result is row n of the file: no blank line is skipped. Any fault raises a :class:`PipelineError`.
    """
    return read_any(file, strict=True).rows


def read_any(file: Path, *, strict: bool) -> Table:
    """Read a table in the format of its content or suffix; a :class:`PipelineError` if it cannot be read.

    Args:
        strict: see :class:`pipeline.data.formats.base.Reader`.
    """
    named, where = format_named(file), name_of(file)
    with reading(Path(where), f"write it again as {named.suffixes[0][1:]}", missing=""):
        if file == STANDARD:
            content = sys.stdin.buffer.read() if sys.stdin is not None else b""
        else:
            check_regular(file)
            content = file.read_bytes()
        table = recognised(content, named, where).read(content, where, strict=strict)
    if repeated := table.rows.columns[table.rows.columns.duplicated()].tolist():
        raise PipelineError(f"{where}: more than one column is called {repeated[0]!r}: give each another name")
    return table


def check_writable(table: pd.DataFrame, file: Path) -> None:
    """Raise a :class:`PipelineError` for the first column that the format of ``file`` cannot hold."""
    form = format_named(file)
    for column in table:
        try:
            form.check(table[[column]])
        except (ValueError, TypeError, RecursionError, OverflowError, pa.ArrowException) as error:
            words = "text that no encoding can write" if isinstance(error, UnicodeError) else str(*error.args[:1])
            reason = words.partition("\n")[0][:200]
            raise PipelineError(
                f"column {column!r} cannot be written as {form.suffixes[0][1:]} ({reason}): leave it out"
            ) from None


def write_table(table: pd.DataFrame, file: Path) -> None:
    """Write a table in the format of its suffix; the file appears complete or not at all."""
    form = format_named(file)
    if file == STANDARD:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(encoding="utf-8")
        form.write(table, sys.stdout)
        return
    with new_file(file) as temporary:
        form.write(table, temporary)
