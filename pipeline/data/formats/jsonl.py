"""JSON lines: an object a line. A blank line is refused: other readers skip it, and later rows would be one off."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.data.formats.base import Format, Table
from pipeline.data.formats.encoding import decode
from pipeline.system.errors import PipelineError

if TYPE_CHECKING:
    import pandas as pd


def read(content: bytes, where: str, *, strict: bool) -> Table:
    import pandas as pd

    text, encoding = decode(content, where, strict=strict)
    # dtype object keeps integers beside nulls as they were written.
    return Table(pd.DataFrame(_rows(text, where), dtype=object), f"jsonl, {encoding}")


def _rows(text: str, where: str) -> list[dict[str, Any]]:
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
            raise PipelineError(
                f"{where}: line {number} is blank: delete it, so that each line is a row"
                if text.strip()
                else f"{where}: no rows: the file is empty"
            )
        if problem is not None:
            raise PipelineError(f"{where}: line {number} {problem}: {line[:60]!r}")
        rows.append(row)
    return rows


def lines(table: pd.DataFrame) -> list[str]:
    """A JSON object a row. (``to_json`` of pandas keeps ten decimals of a float.)"""
    rows = table.astype(object).where(table.notna(), None).to_dict("records")
    return [json.dumps(row, ensure_ascii=False, default=_as_json) for row in rows]


def _as_json(value: Any) -> Any:
    """Arrays as lists, and times and decimals as text: JSON has no type for what a parquet file may hold."""
    import numpy as np

    return value.tolist() if isinstance(value, np.ndarray | np.generic) else str(value)


def write(table: pd.DataFrame, file: Path) -> None:
    file.write_text("".join(f"{line}\n" for line in lines(table)), encoding="utf-8")


def check(table: pd.DataFrame) -> None:
    "".join(lines(table)).encode()


JSONL = Format((".jsonl",), read, write, check, usual="jsonl, utf-8(-sig)?")
