"""Which files are tables, and whether one can be written; imports nothing heavy, so that a command can ask at once."""

from pathlib import Path

from pipeline.system.atomic import check_writable
from pipeline.system.errors import PipelineError, writing

SUFFIXES = (".parquet", ".csv", ".tsv", ".jsonl")
SPREADSHEET = ".xlsx"
"""Read where a person's own tables are (``pipeline.data.foreign``), and never written."""
STANDARD = Path("-")
"""Standard input or standard output, where a file is named."""


def check_suffix(file: Path) -> None:
    if file != STANDARD and file.suffix not in SUFFIXES:
        raise PipelineError(f"{file}: unknown suffix '{file.suffix}': use one of {', '.join(SUFFIXES)}")


def name_of(file: Path) -> str:
    """What messages about the input ``file`` call it."""
    return "standard input" if file == STANDARD else str(file)


def check_output(output_file: Path, input_file: Path) -> None:
    """Fail before anything is computed if a table cannot be written, or would replace the input."""
    if output_file.suffix.lower() == SPREADSHEET:
        raise PipelineError(f"--output {output_file}: xlsx is read but not written: use one of {', '.join(SUFFIXES)}")
    check_suffix(output_file)
    if output_file == STANDARD:
        return
    with writing(output_file):
        if output_file.is_dir():
            raise PipelineError(f"--output {output_file}: this is a folder: name a file in it")
        is_file = input_file != STANDARD and input_file.exists()
        if is_file and output_file.exists() and output_file.samefile(input_file):
            raise PipelineError(f"--output {output_file} is the input file, which would be lost: name another file")
    check_writable(output_file)
