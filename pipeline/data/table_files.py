"""Which files are tables, and whether one can be written; imports nothing heavy, so that a command can ask at once."""

from pathlib import Path

from pipeline.data.formats import SUFFIXES, Format, format_of
from pipeline.data.formats.delimited import CSV
from pipeline.system.atomic import check_writable
from pipeline.system.errors import PipelineError, writing

__all__ = ["STANDARD", "SUFFIXES", "check_output", "format_named", "name_of"]

STANDARD = Path("-")
"""Standard input or standard output, where a file is named; it is csv."""


def format_named(file: Path) -> Format:
    """The format that the name of ``file`` asks for; a :class:`PipelineError` if none has its suffix."""
    return CSV if file == STANDARD else format_of(file)


def name_of(file: Path) -> str:
    """What messages about the input ``file`` call it."""
    return "standard input" if file == STANDARD else str(file)


def check_output(output_file: Path, input_file: Path) -> None:
    """Fail before anything is computed if a table cannot be written, or would replace the input."""
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
