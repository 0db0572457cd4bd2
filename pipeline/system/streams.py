"""Standard output and standard error, which may be closed, on a full disk, or unable to encode some letters."""

import io
import os
import re
import sys
from typing import TextIO

from pipeline.system.errors import PipelineError, printable, refusal
from pipeline.system.process import is_main_process

CLOSED_PIPE = 141  # the exit status of a command whose reader has gone, as if SIGPIPE had killed it: 128 + 13

_ENDLESS = re.compile(r"(\S{120})\S{80,}(\S{60})")


class _Progress(io.TextIOWrapper):
    """Standard error: once a write fails, it drops all output, so that a run of hours goes on."""

    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except OSError as error:
            self._fail(error)
            return len(text)

    def flush(self) -> None:
        try:
            super().flush()
        except OSError as error:
            self._fail(error)

    def _fail(self, _error: OSError) -> None:
        """Discard what the stream holds, and everything printed to it from now on."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.fileno())
        os.close(nowhere)


class _Results(_Progress):
    """Standard output: if nobody can read the results, the command ends."""

    def _fail(self, error: OSError) -> None:
        super()._fail(error)
        if isinstance(error, BrokenPipeError):
            raise SystemExit(CLOSED_PIPE) from error
        raise PipelineError(f"cannot print the result: {refusal(error) or error}. Finished work is kept") from error


def set_up() -> None:
    """Make standard output and standard error safe to print to: letters that their encoding lacks become escapes.

    Standard output raises ``SystemExit(141)`` once its reader is gone, as with ``| head``, and a
    :class:`PipelineError` if it fails for another reason. Standard error drops what it cannot write.
    """
    # Open descriptors 0 to 2 if closed: the next file would get the number, and with it whatever C code prints.
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    sys.stdout = _wrapped(sys.stdout, _Results)
    sys.stderr = _wrapped(sys.stderr, _Progress)


LIBRARIES = "loading torch, transformers and AdapterHub"


def is_commands(stream: TextIO) -> bool:
    """Whether ``stream`` belongs to a command's main process, rather than to a program that uses the project."""
    return isinstance(stream, _Progress) and is_main_process()


def announce(what: str, *, everywhere: bool = False) -> None:
    """Say on standard error what a command does next, if that may take a while without showing anything.

    Only on a terminal, or ``everywhere``, and not when the project is used as a library.
    """
    if is_commands(sys.stderr) and (everywhere or sys.stderr.isatty()):
        print(f"{printable(what)} ...", file=sys.stderr, flush=True)


def notice(text: str) -> None:
    """Print a line to standard error, without control characters; only the main process prints."""
    if is_main_process():
        print(printable(text), file=sys.stderr, flush=True)


def print_error(message: str) -> None:
    """Print ``message`` to standard error without control characters, and with endless words cut in the middle."""
    short = _ENDLESS.sub(r"\1...\2", message)
    print(f"error: {printable(short)}", file=sys.stderr)


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
