"""Ctrl-C and SIGTERM: one line that says what is kept, and the exit status that a shell expects, 128 + the signal."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType

from pipeline.system.process import is_main_process

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_RESUMABLE = ("extract", "fuse", "compare", "pretrain", "demo")


class Interrupted(KeyboardInterrupt):
    """A signal asks the process to end; its number is the only argument."""


def handle() -> None:
    """Raise :class:`Interrupted` at the first SIGINT or SIGTERM; the second one kills.

    A signal that the parent process ignores stays ignored: Ctrl-C is not meant for a script's background jobs.
    """
    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)


def report(interrupt: KeyboardInterrupt, arguments: Sequence[str]) -> int:
    """Tell the user how to resume after ``interrupt``; returns the exit status.

    Args:
        arguments: of the command line, the verb first.
    """
    if is_main_process():
        resumable = bool(arguments) and arguments[0] in _RESUMABLE
        kept = ": finished work is kept; run the same command again to resume" if resumable else ""
        print(f"interrupted{kept}", file=sys.stderr)
    return 128 + (interrupt.args[0] if interrupt.args else signal.SIGINT)


def _interrupt(number: int, _frame: FrameType | None) -> None:
    for each in _SIGNALS:
        signal.signal(each, signal.SIG_DFL)
    sys.unraisablehook = _end
    raise Interrupted(number)


def _end(unraisable: sys.UnraisableHookArgs) -> None:
    """End the process where Python would drop the interrupt: it was raised in a destructor or a callback.

    This is no worse than SIGKILL: finished work is kept.
    """
    if isinstance(unraisable.exc_value, Interrupted):
        os._exit(report(unraisable.exc_value, sys.argv[1:]))
    sys.__unraisablehook__(unraisable)
