"""Tables with typed cells: JSON lines, JSON and spreadsheets.

JSON is a list of objects, one a row, or an object of lists, one a column; JSON lines, an object a line, often have its
suffix. A blank line is refused: other readers skip it, and later rows would be one off. A spreadsheet has one sheet
with cells, whose first row that is not blank names the columns.
"""

from __future__ import annotations

import io
import json
import re
from datetime import datetime, time
from typing import TYPE_CHECKING, Any, BinaryIO

from pipeline.data.delimited import column_names, decode
from pipeline.system.errors import PipelineError, shortened

if TYPE_CHECKING:
    import pandas as pd
    from openpyxl.cell import WriteOnlyCell
    from openpyxl.worksheet.worksheet import Worksheet

_REMEDY = "save the sheet as csv, and give that"
# OOXML, ST_Xstring (ECMA-376 part 1, 22.9.2.19): what XML cannot hold is written _xHHHH_, and so is a _ before such.
_TO_ESCAPE = re.compile("[\x00-\x08\x0b-\x1f\ufffe\uffff]|_(?=x[0-9A-Fa-f]{4}_)")
_LONGEST = 32_767  # characters of a cell
_MOST_EXACT = 10**15  # spreadsheet programs round longer numbers


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

    rows = pd.DataFrame(value, dtype=object)  # dtype object keeps integers beside nulls as they were written
    return rows.set_axis(rows.index + 1)


def _lines(table: pd.DataFrame) -> list[str]:
    """A JSON object a row. (``to_json`` of pandas keeps ten decimals of a float.)"""
    import numpy as np

    def default(value: Any) -> Any:
        # JSON has no type for what a parquet file may hold: arrays become lists, and times and decimals texts.
        return value.tolist() if isinstance(value, np.ndarray | np.generic) else str(value)

    rows = table.astype(object).where(table.notna(), None).to_dict("records")
    return [json.dumps(row, ensure_ascii=False, default=default) for row in rows]


def write_json_lines(table: pd.DataFrame, sink: BinaryIO) -> None:
    sink.write("".join(f"{line}\n" for line in _lines(table)).encode())


def write_json(table: pd.DataFrame, sink: BinaryIO) -> None:
    sink.write(("[\n" + ",\n".join(_lines(table)) + "\n]\n").encode())


def read_xlsx(content: bytes, where: str, *, strict: bool) -> tuple[pd.DataFrame, str]:
    """The rows below the header, blank ones too; an empty cell is None. Cells merged down a column share their value.

    Raises:
        PipelineError: several sheets have cells, or a formula has no saved result.
    """
    import pandas as pd

    sheets = _filled(content, where, values=False)
    # Hidden sheets hold lists to choose from.
    visible = [sheet for sheet in sheets if sheet.sheet_state == "visible"] or sheets
    if not visible:
        raise PipelineError(f"{where}: no sheet has cells")
    if len(visible) != 1:
        names = ", ".join(sheet.title for sheet in visible)
        raise PipelineError(f"{where}: {len(visible)} sheets have cells ({names}): {_REMEDY}")
    (sheet,) = visible
    if formulas := [cell.coordinate for row in sheet.iter_rows() for cell in row if cell.data_type == "f"]:
        sheet = next((each for each in _filled(content, where, values=True) if each.title == sheet.title), sheet)
        # An empty text that is a result has the type of a text.
        lost = [at for at in formulas if sheet[at].value is None and sheet[at].data_type == "n"]
        if lost:
            raise PipelineError(
                f"{where}: {len(lost)} cells hold formulas without a saved result, such as {lost[0]}: open the file in"
                " a spreadsheet program and save it, or save the sheet as csv"
            )
    cells = [[_value(cell) for cell in row] for row in sheet.iter_rows()]
    header = next(number for number, row in enumerate(cells) if any(value is not None for value in row))
    filled = 0  # cells below the header that are merged with one above them in their column: they get its value
    for area in sheet.merged_cells.ranges:
        column, first = area.min_col - 1, area.min_row - 1
        if first > header and cells[first][column] is not None:
            for row in range(first + 1, area.max_row):
                cells[row][column] = cells[first][column]
                filled += 1
    while all(value is None for value in cells[-1]):
        del cells[-1]
    width = max(place + 1 for row in cells for place, value in enumerate(row) if value is not None)
    columns = {place: [row[place] for row in cells[header + 1 :]] for place in range(width)}
    index = pd.RangeIndex(header + 2, len(cells) + 1)
    rows = pd.DataFrame(columns, index, dtype=object).set_axis(column_names(cells[header][:width]), axis=1)
    notes = [f"{filled} merged cells filled"] if filled else []
    notes += [f"hidden sheet {other.title} left out" for other in sheets if other not in visible]
    return rows, ", ".join([f"xlsx, sheet {sheet.title}", *notes])


def _filled(content: bytes, where: str, values: bool) -> list[Worksheet]:
    """The sheets with cells, with formulas or with the ``values`` that were saved of them."""
    import openpyxl

    try:
        book = openpyxl.load_workbook(io.BytesIO(content), data_only=values)
    except Exception as error:  # whatever its parsers raise for a file that is none
        raise PipelineError(f"{where}: cannot be read as xlsx ({shortened(str(error))}): {_REMEDY}") from None
    return [sheet for sheet in book.worksheets if any(c.value is not None for row in sheet.iter_rows() for c in row)]


def _value(cell: Any) -> Any:
    from openpyxl.utils.escape import unescape

    value = cell.value
    if cell.data_type == "e" or value == "":
        return None
    if isinstance(value, str):
        return unescape(value)
    if isinstance(value, datetime) and value.time() == time():
        return value.date()
    return int(value) if isinstance(value, float) and value.is_integer() else value


def write_xlsx(table: pd.DataFrame, sink: BinaryIO, *, title: str = "table") -> None:
    import openpyxl
    import pandas as pd
    from openpyxl.cell import WriteOnlyCell

    book = openpyxl.Workbook(write_only=True)
    sheet = book.create_sheet(title)

    def written(value: Any) -> WriteOnlyCell:
        is_long = isinstance(value, int) and not isinstance(value, bool) and abs(value) >= _MOST_EXACT
        if is_long or (isinstance(value, float) and value in (float("inf"), float("-inf"))):
            value = str(value)
        if not isinstance(value, str):
            return WriteOnlyCell(sheet, None if pd.api.types.is_scalar(value) and pd.isna(value) else value)
        value.encode()
        text = _TO_ESCAPE.sub(lambda match: f"_x{ord(match[0]):04X}_", value)
        if len(text) > _LONGEST:
            raise ValueError(f"a cell holds at most {_LONGEST:,} characters")
        cell = WriteOnlyCell(sheet, text)
        cell.data_type = "s"  # what begins with = is no formula
        return cell

    try:
        sheet.append([written(str(name)) for name in table.columns])
        for row in zip(*(table.iloc[:, place].tolist() for place in range(table.shape[1])), strict=True):
            sheet.append([written(value) for value in row])
    finally:
        sheet.close()  # openpyxl prints a traceback for a sheet that is collected open
    book.save(sink)
