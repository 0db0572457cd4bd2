"""Read and write tables as parquet, csv, tsv or jsonl, by suffix."""

import csv
import json
from pathlib import Path

import pandas as pd

from pipeline.data.delimited import read_delimited
from pipeline.system.atomic import new_file
from pipeline.system.errors import PipelineError
from pipeline.system.reading import check_regular, reading

SUFFIXES = (".parquet", ".csv", ".tsv", ".jsonl")


def check_suffix(file: Path) -> None:
    """Raise a :class:`PipelineError` unless the suffix of ``file`` is that of a table."""
    if file.suffix not in SUFFIXES:
        raise PipelineError(f"{file}: unknown suffix '{file.suffix}': use one of {', '.join(SUFFIXES)}")


def read_table(file: Path) -> pd.DataFrame:
    """Read a table; text stays as written ("NA" and "null" are words, only an empty cell is empty).

    A ``.csv`` whose header holds tabs and no commas is read as tab-separated, as some releases name such files. Row n
    of the result is the file's row n: no blank line is skipped.

    Raises:
        PipelineError: no such file, unknown suffix, not UTF-8 (with line and bytes), or not such a table; one line.
    """
    check_suffix(file)
    with reading(file, f"write it again as {file.suffix[1:]}"):
        check_regular(file)
        if file.suffix == ".parquet":
            table = pd.read_parquet(file)
        elif file.suffix == ".jsonl":
            table = _from_jsonl(_decode(file), file)
        else:
            table = read_delimited(_decode(file), file.suffix == ".tsv", file)
    if repeated := table.columns[table.columns.duplicated()].tolist():
        raise PipelineError(f"{file}: more than one column is called {repeated[0]!r}: give each another name")
    return table


def write_table(table: pd.DataFrame, file: Path) -> None:
    """Write a table in the format of its suffix; the file appears complete or not at all."""
    check_suffix(file)
    with new_file(file) as temporary:
        if file.suffix == ".parquet":
            table.to_parquet(temporary, index=False)
        elif file.suffix == ".jsonl":
            # pandas' to_json keeps ten decimals of a float.
            rows = table.astype(object).where(table.notna(), None).to_dict("records")
            text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
            temporary.write_text(text, encoding="utf-8")
        else:
            tabs = file.suffix == ".tsv"
            texts = (cell for column in table for cell in table[column] if isinstance(cell, str))
            table.to_csv(
                temporary,
                sep="\t" if tabs else ",",
                index=False,
                quoting=csv.QUOTE_NONNUMERIC if any(_must_quote(text, tabs) for text in texts) else csv.QUOTE_MINIMAL,
            )


def _must_quote(text: str, tabs: bool) -> bool:
    """Whether a text would be read back wrongly unless all texts are quoted, the header too.

    Minimal quoting leaves a carriage return unquoted, which ends the row. Line breaks and tabs in one cell look like
    rows that a stray quote has swallowed.
    """
    return "\r" in text or (tabs and "\n" in text and "\t" in text)


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
    text, rows = text.rstrip(), []
    if not text:
        raise PipelineError(f"{file}: no rows: the file is empty")
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            # Other readers skip it, so pairing lines of this file with predictions would be a row off.
            raise PipelineError(f"{file}: line {number} is blank: delete it, so that each line is a row")
        try:
            row = json.loads(line)
        except RecursionError:
            raise PipelineError(f"{file}: line {number} is nested too deeply: {line[:60]!r}") from None
        except ValueError as error:
            reason = error.msg if isinstance(error, json.JSONDecodeError) else error
            raise PipelineError(f"{file}: line {number} is not JSON: {reason}: {line[:60]!r}") from None
        if not isinstance(row, dict):
            raise PipelineError(f"{file}: line {number} is not a JSON object: {line[:60]!r}")
        rows.append(row)
    # dtype object keeps integers beside nulls as they were written.
    return pd.DataFrame(rows, dtype=object)
