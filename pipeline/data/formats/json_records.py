"""JSON: a list of objects, one a row, or an object of lists, one a column. JSON lines often have its suffix."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.data.formats import jsonl
from pipeline.data.formats.base import Format, Table
from pipeline.data.formats.encoding import decode
from pipeline.system.errors import PipelineError

if TYPE_CHECKING:
    import pandas as pd


def read(content: bytes, where: str, *, strict: bool) -> Table:
    import pandas as pd

    text, encoding = decode(content, where, strict=strict)
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        if error.msg == "Extra data":  # one object after another
            return jsonl.read(content, where, strict=strict)
        raise
    are_columns = isinstance(value, dict) and all(isinstance(column, list) for column in value.values())
    if not are_columns and not (isinstance(value, list) and all(isinstance(row, dict) for row in value)):
        raise PipelineError(f'{where}: is no list of rows: write it as [{{"column": "value"}}, ...]')
    rows = pd.DataFrame(value, dtype=object)  # dtype object keeps integers beside nulls as they were written
    if rows.empty:
        raise PipelineError(f"{where}: no rows: the list is empty")
    return Table(rows, f"json, {encoding}")


def write(table: pd.DataFrame, file: Path) -> None:
    file.write_text("[\n" + ",\n".join(jsonl.lines(table)) + "\n]\n", encoding="utf-8")


JSON = Format((".json",), read, write, jsonl.check, usual="json, utf-8(-sig)?")
