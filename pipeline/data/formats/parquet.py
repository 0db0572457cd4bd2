"""Parquet, which keeps types; and what any Arrow table becomes in pandas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pipeline.data.formats.base import Format, Table

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


def read(content: bytes, where: str, *, strict: bool) -> Table:
    import pyarrow as pa
    import pyarrow.parquet as pq

    return Table(as_pandas(pq.read_table(pa.BufferReader(content))), "parquet")


def as_pandas(table: pa.Table) -> pd.DataFrame:
    """An Arrow table in pandas, as other formats have it.

    Bytes that are UTF-8 are text: Spark, Impala and TensorFlow Datasets write strings so. What pandas saved as a named
    index, such as ids, is a column again. A blank of a nullable type (``DataFrame.convert_dtypes``) is None, not
    ``pd.NA``.
    """
    import pandas as pd
    import pyarrow as pa

    for place, field in enumerate(table.schema):
        if (text := _as_text(field.type)) != field.type:
            try:
                table = table.set_column(place, field.with_type(text), table.column(place).cast(text))
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


def _as_text(kind: pa.DataType) -> pa.DataType:
    """``kind`` with text in place of bytes, also in lists and dictionaries."""
    import pyarrow as pa

    types = pa.types
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        return pa.large_string()
    if types.is_dictionary(kind) and _as_text(kind.value_type) != kind.value_type:
        return _as_text(kind.value_type)
    if (types.is_list(kind) or types.is_large_list(kind)) and _as_text(kind.value_type) != kind.value_type:
        return pa.large_list(_as_text(kind.value_type))
    return kind


def write(table: pd.DataFrame, file: Any) -> None:
    table.to_parquet(file, index=False, compression="zstd")


def check(table: pd.DataFrame) -> None:
    import pyarrow as pa

    pa.Table.from_pandas(table, preserve_index=False)


PARQUET = Format((".parquet",), read, write, check, magic=b"PAR1", usual="parquet")
