"""A progress bar while a command prepares many rows; without a terminal, one line."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from pipeline.system.streams import announce, is_commands


@contextmanager
def counting(what: str, rows: int) -> Iterator[Callable[[int], None]]:
    """Show on standard error how many of ``rows`` are done; yields a function that adds to the count.

    Nothing is shown when the project is used as a library, or in processes other than the main one.
    """
    if not (is_commands(sys.stderr) and sys.stderr.isatty()):
        announce(f"{what} {rows:,} rows", everywhere=True)
        yield lambda done: None
        return
    console = Console(stderr=True, highlight=False)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("rows, left")
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as progress:
        bar = progress.add_task(what, total=rows)
        yield lambda done: progress.advance(bar, done)
