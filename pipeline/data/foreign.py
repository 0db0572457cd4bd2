"""Read tables written by other programs, in any usual encoding and layout."""

import re
from pathlib import Path

import pandas as pd

from pipeline.data.formats import FORMATS, Table
from pipeline.data.table_files import STANDARD
from pipeline.data.tables import read_any, read_table
from pipeline.system.errors import PipelineError
from pipeline.system.streams import notice


def read_foreign(file: Path) -> Table:
    """Read a table in any format of :mod:`pipeline.data.formats`, text in any usual encoding and delimiter.

    Raises:
        PipelineError: the suffix is unknown, or the file cannot be read.
    """
    table = read_any(file, strict=False)
    if table.rows.empty:
        raise PipelineError(f"{file}: no rows")
    names = [str(name).strip() for name in table.rows.columns]
    return Table(table.rows.set_axis(names, axis=1), table.form) if len({*names}) == len(names) else table


def read_input(file: Path) -> pd.DataFrame:
    """The rows for a trained model: from a file (:func:`read_foreign`), or csv from standard input.

    A note on stderr says how the file was read, unless it has this project's format.
    """
    if file == STANDARD:
        return read_table(file)
    table = read_foreign(file)
    if not any(form.usual and re.fullmatch(form.usual, table.form) for form in FORMATS):
        notice(f"note: {file} was read as {table.form}")
    return table.rows
