"""A bar over rows while a command prepares many of them; where there is no terminal, one line."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from pipeline.system.streams import announce, is_commands


@contextmanager
def counting(what: str, rows: int) -> Iterator[Callable[[int], None]]:
    """Show how many of ``rows`` are done, on standard error, until the context ends; yields what counts more of them.

    Nothing is shown where the project is used as a library, or by other processes than the main one.
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
