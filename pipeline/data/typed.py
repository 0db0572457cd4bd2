"""Tables with typed cells: JSON lines, JSON and parquet; and what any Arrow table becomes in pandas.

JSON is a list of objects, one a row, or an object of lists, one a column; JSON lines, an object a line, often have its
suffix. A blank line is refused: other readers skip it, and later rows would be one off.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, BinaryIO

from pipeline.data.delimited import decode
from pipeline.system.errors import PipelineError

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


def read_json_lines(content: bytes, where: str, *, strict: bool) -> tuple[pd.DataFrame, str]:
    text, encoding = decode(content, where, strict=strict)
    rows = []
    for number, line in enumerate(text.rstrip().split("\n"), start=1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict):
            raise PipelineError(f"{where}: line {number} is not a JSON object: {line[:60]!r}: write one on every line")
        rows.append(row)
    return _frame(rows), f"jsonl, {encoding}"


def read_json(content: bytes, where: str, *, strict: bool) -> tuple[pd.DataFrame, str]:
    text, encoding = decode(content, where, strict=strict)
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        if error.msg == "Extra data":  # one object after another
            return read_json_lines(content, where, strict=strict)
        raise
    are_columns = isinstance(value, dict) and all(isinstance(column, list) for column in value.values())
    if not value or not (are_columns or (isinstance(value, list) and all(isinstance(row, dict) for row in value))):
        raise PipelineError(f'{where}: is no list of rows: write it as [{{"column": "value"}}, ...]')
    return _frame(value), f"json, {encoding}"


def _frame(value: Any) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame(value, dtype=object)  # dtype object keeps integers beside nulls as they were written


def _lines(table: pd.DataFrame) -> list[str]:
    """A JSON object a row. (``to_json`` of pandas keeps ten decimals of a float.)"""
    rows = table.astype(object).where(table.notna(), None).to_dict("records")
    return [json.dumps(row, ensure_ascii=False, default=_as_json) for row in rows]


def _as_json(value: Any) -> Any:
    """Arrays as lists, and times and decimals as text: JSON has no type for what a parquet file may hold."""
    import numpy as np

    return value.tolist() if isinstance(value, np.ndarray | np.generic) else str(value)


def write_json_lines(table: pd.DataFrame, sink: BinaryIO) -> None:
    sink.write("".join(f"{line}\n" for line in _lines(table)).encode())


def write_json(table: pd.DataFrame, sink: BinaryIO) -> None:
    sink.write(("[\n" + ",\n".join(_lines(table)) + "\n]\n").encode())


def read_parquet(content: bytes, where: str, *, strict: bool) -> tuple[pd.DataFrame, str]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    return as_pandas(pq.read_table(pa.BufferReader(content))), "parquet"


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
    rows = rows.reset_index(named).reset_index(drop=True)
    for position, dtype in enumerate(rows.dtypes):
        values = rows.iloc[:, position]
        if getattr(dtype, "na_value", None) is pd.NA and values.hasnans:
            objects: Any = values.astype(object).where(values.notna(), None)  # Any: pandas-stubs leaves out Series here
            rows.isetitem(position, objects)
    return rows


def write_parquet(table: pd.DataFrame, sink: BinaryIO) -> None:
    table.to_parquet(sink, index=False, compression="zstd")
