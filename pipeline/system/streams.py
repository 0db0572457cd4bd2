"""Standard output and standard error: both may be closed, on a full disk, or lack letters of what is printed."""

from __future__ import annotations

import io
import os
import re
import sys
from typing import NoReturn, TextIO

from pipeline.system.errors import PipelineError, refusal
from pipeline.system.printable import printable

CLOSED_PIPE = 141
"""The exit status of a command whose reader went away, as of one that SIGPIPE kills: 128 + 13."""

_ENDLESS = re.compile(r"(\S{120})\S{80,}(\S{60})")


class _Results(io.TextIOWrapper):
    """Standard output: a command whose results nobody can read ends."""

    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except OSError as error:
            _give_up(self, error)

    def flush(self) -> None:
        try:
            super().flush()
        except OSError as error:
            _give_up(self, error)


class _Progress(io.TextIOWrapper):
    """Standard error: a run of hours goes on where nobody watches it any more."""

    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except OSError:
            _discard(self)
            return len(text)

    def flush(self) -> None:
        try:
            super().flush()
        except OSError:
            _discard(self)


def set_up() -> None:
    """Make standard output and standard error safe to print to for the rest of the process.

    Letters that their encoding lacks are written as escapes, which keeps ↑ and ↓ apart. Standard output raises
    ``SystemExit(141)`` once its reader has gone, as behind ``| head``, and a :class:`PipelineError` where it cannot be
    written for another reason. What cannot be written to standard error is dropped.
    """
    _open_descriptors()
    sys.stdout = _wrapped(sys.stdout, _Results)
    sys.stderr = _wrapped(sys.stderr, _Progress)


def print_error(message: str) -> None:
    """Print ``message`` to standard error without control characters, and with endless words cut in the middle."""
    short = _ENDLESS.sub(r"\1...\2", message)
    print(f"error: {printable(short)}", file=sys.stderr)


def _open_descriptors() -> None:
    """Open what of descriptors 0 to 2 is closed: the next file would get its number, and what C code prints."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)


def _wrapped(stream: TextIO | None, kind: type[io.TextIOWrapper]) -> TextIO:
    if stream is None:
        return open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123  (it stays open)
    if not isinstance(stream, io.TextIOWrapper):
        return stream
    return kind(
        stream.buffer,
        encoding=stream.encoding,
        errors="backslashreplace",
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


def _give_up(stream: io.TextIOWrapper, error: OSError) -> NoReturn:
    _discard(stream)
    if isinstance(error, BrokenPipeError):
        raise SystemExit(CLOSED_PIPE) from error
    raise PipelineError(f"cannot print the result: {refusal(error) or error}. What was finished is kept") from error


def _discard(stream: io.TextIOWrapper) -> None:
    """Send what ``stream`` holds, and all that is still printed to it, nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
