"""Which files are tables, and whether one can be written. Imports nothing heavy, so commands can check at once."""

from pathlib import Path

from pipeline.data.formats import SUFFIXES, Format, format_of
from pipeline.data.formats.delimited import CSV
from pipeline.system.atomic import check_writable
from pipeline.system.errors import PipelineError, writing

__all__ = ["STANDARD", "SUFFIXES", "check_output", "format_named", "name_of"]

STANDARD = Path("-")
"""In place of a file name: standard input or output, as csv."""


def format_named(file: Path) -> Format:
    """The format for the suffix of ``file``; a :class:`PipelineError` if there is none."""
    return CSV if file == STANDARD else format_of(file)


def name_of(file: Path) -> str:
    """The name of the input ``file`` in messages."""
    return "standard input" if file == STANDARD else str(file)


def check_output(output_file: Path, input_file: Path) -> None:
    """Fail before any work is done if the table cannot be written, or would replace the input."""
    format_named(output_file)
    if output_file == STANDARD:
        return
    with writing(output_file):
        if output_file.is_dir():
            raise PipelineError(f"--output {output_file}: this is a folder: name a file in it")
        is_file = input_file != STANDARD and input_file.exists()
        if is_file and output_file.exists() and output_file.samefile(input_file):
            raise PipelineError(f"--output {output_file} is the input file, which would be lost: name another file")
    check_writable(output_file)
