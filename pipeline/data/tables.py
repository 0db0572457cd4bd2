"""Tables by suffix: parquet, csv, tsv, jsonl; and what a file must be to count as one."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pandas as pd

from pipeline.atomic import new_file
from pipeline.errors import PipelineError

SUFFIXES = (".parquet", ".csv", ".tsv", ".jsonl")


def check_suffix(file: Path) -> None:
    """Raise a :class:`PipelineError` unless the name of ``file`` says which kind of table it is."""
    if file.suffix not in SUFFIXES:
        raise PipelineError(f"{file}: unknown suffix '{file.suffix}': use one of {', '.join(SUFFIXES)}")


def read_table(file: Path) -> pd.DataFrame:
    """Read a table; text stays as written ("NA" and "null" are words, only an empty cell is empty).

    A ``.csv`` whose header holds tabs and no commas is read as tab-separated, as some releases name such files.

    Raises:
        PipelineError: no such file, unknown suffix, not UTF-8 (with line and bytes), or not parsable.
    """
    check_suffix(file)
    if not file.is_file():
        raise PipelineError(f"{file}: no such file")
    try:
        if file.suffix == ".parquet":
            return pd.read_parquet(file)
        text = _decode(file)
        if file.suffix == ".jsonl":
            return _from_jsonl(text, file)
        header = text.partition("\n")[0]
        separator = "\t" if file.suffix == ".tsv" or ("\t" in header and "," not in header) else ","
        table = pd.read_csv(io.StringIO(text), sep=separator, dtype=str, keep_default_na=False, na_values=[""])
        if not isinstance(table.index, pd.RangeIndex):
            # pandas takes the first cells for row names, and every text would stand one column too far right.
            raise PipelineError(f"{file}: rows hold more cells than the header: quote text that holds {separator!r}")
        return table
    except PipelineError:
        raise
    except pd.errors.EmptyDataError:
        raise PipelineError(f"{file}: no rows: the file is empty") from None
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise PipelineError(f"{file}: cannot be read as {file.suffix[1:]}: {reason}") from error


def write_table(table: pd.DataFrame, file: Path) -> None:
    """Write a table in the form its suffix names; the file appears complete or not at all."""
    check_suffix(file)
    with new_file(file) as temporary:
        if file.suffix == ".parquet":
            table.to_parquet(temporary, index=False)
        elif file.suffix == ".jsonl":
            table.to_json(temporary, orient="records", lines=True, force_ascii=False)
        else:
            # QUOTE_MINIMAL leaves a carriage return unquoted, and it would end the row when read.
            returns = any("\r" in cell for column in table for cell in table[column] if isinstance(cell, str))
            table.to_csv(
                temporary,
                sep="\t" if file.suffix == ".tsv" else ",",
                index=False,
                quoting=csv.QUOTE_NONNUMERIC if returns else csv.QUOTE_MINIMAL,
            )


def _decode(file: Path) -> str:
    content = file.read_bytes()
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        bad = []
        for number, line in enumerate(content.split(b"\n"), start=1):
            try:
                line.decode("utf-8-sig")
            except UnicodeDecodeError as error:
                bad.append(f"line {number}: {line[max(0, error.start - 10) : error.end + 10]!r}")
        shown = "; ".join(bad[:3])
        raise PipelineError(
            f"{file}: text is not UTF-8 in {len(bad)} line(s): {shown}. Convert it, for example with"
            " iconv -f latin1 -t utf-8"
        ) from None


def _from_jsonl(text: str, file: Path) -> pd.DataFrame:
    rows = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise PipelineError(f"{file}: line {number} is not JSON: {error.msg}: {line[:60]!r}") from None
        if not isinstance(row, dict):
            raise PipelineError(f"{file}: line {number} is not a JSON object: {line[:60]!r}")
        rows.append(row)
    if not rows:
        raise PipelineError(f"{file}: no rows: the file is empty")
    # dtype object keeps integers beside nulls as they were written.
    return pd.DataFrame(rows, dtype=object)
