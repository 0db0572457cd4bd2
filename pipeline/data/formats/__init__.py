"""The file formats of tables, one file each: suffixes, reading, writing, and what is strict about it.

To add a format, write a module with a :class:`Format` and add it to ``FORMATS``.
"""

import re
from pathlib import Path

from pipeline.data.formats import delimited, json_records, jsonl, parquet, xlsx
from pipeline.data.formats.base import Format, Table
from pipeline.system.errors import PipelineError

__all__ = ["FORMATS", "SUFFIXES", "Format", "Table", "format_of", "recognised"]

FORMATS: tuple[Format, ...] = (
    parquet.PARQUET,
    delimited.CSV,
    delimited.TSV,
    jsonl.JSONL,
    json_records.JSON,
    xlsx.XLSX,
)
_OTHER_SPREADSHEETS = (".xls", ".xlsm", ".xlsb", ".ods")
_OLE = bytes.fromhex("d0cf11e0a1b11ae1")
_OBJECTS, _HEADER = re.compile(rb'\s*(\{\s*"[^"]*"\s*:|\[\s*\{)'), re.compile(rb"[A-Za-z_#][\w #]*[,;\t|].*\n.*[,;\t|]")
_AS_XLSX = "save it as xlsx or csv, and give that"
SUFFIXES = tuple(suffix for form in FORMATS for suffix in form.suffixes)


def format_of(file: Path) -> Format:
    """The format that the suffix of ``file`` names, in any case; a :class:`PipelineError` if none does."""
    suffix = file.suffix.lower()
    for form in FORMATS:
        if suffix in form.suffixes:
            return form
    if suffix in _OTHER_SPREADSHEETS:
        raise PipelineError(f"{file}: a spreadsheet: {_AS_XLSX}")
    raise PipelineError(f"{file}: unknown suffix '{file.suffix}': use one of {', '.join(SUFFIXES)}")


def recognised(content: bytes, named: Format, where: str) -> Format:
    """The format of ``content``, which may be another than its suffix names: a spreadsheet saved as ``.csv``."""
    if content.startswith(_OLE):
        raise PipelineError(f"{where}: a spreadsheet of an old kind or with a password: {_AS_XLSX}")
    for form in FORMATS:
        if form.magic and content.startswith(form.magic):
            return form
    if named.magic:
        is_text = b"\0" not in content and b"\n" in content and not content.startswith(named.magic[:2])
        return delimited.CSV if is_text else named
    if _OBJECTS.match(content):
        return named if named is jsonl.JSONL and content.lstrip()[:1] == b"{" else json_records.JSON
    return delimited.CSV if named in (jsonl.JSONL, json_records.JSON) and _HEADER.match(content) else named
