"""Errors that the user can fix: they say what is wrong, where, and what to do."""

import errno
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

T = TypeVar("T")
R = TypeVar("R")

# Characters that XML 1.0 forbids, and control characters that it allows but a terminal would obey.
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_LINE_BREAK = re.compile("[\n\r\u2028\u2029]")

REFUSALS = {
    errno.EROFS: "the file system is read-only",
    errno.EACCES: "permission denied",
    errno.EPERM: "permission denied",
    errno.EIO: "the disk fails",
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "the file size limit is reached",
    errno.EMFILE: "too many open files: raise the limit (ulimit -n)",
    errno.ENFILE: "the machine has too many open files",
    errno.ENOMEM: "out of memory",
    errno.ESTALE: "the network file system lost it: try again",
}
OF_ONE_FILE = {
    errno.ENOENT: "no such file",
    errno.ENOTDIR: "there is a file where a folder is needed",
    errno.EEXIST: "there is a file where a folder is needed",
    errno.EISDIR: "there is a folder where a file is needed",
    errno.ENAMETOOLONG: "the name is too long",
    errno.ELOOP: "its links go round in a circle",
}
"""Refusals that concern one file, not the whole machine."""

BUG = "a bug: "
"""Prefix of a failed cell's reason if the fault is not the user's."""


class PipelineError(Exception):
    """A mistake that the user can fix; the command line prints it (status 2). Any other exception is a bug."""


class MachineError(PipelineError):
    """The machine refuses: the disk is full, the store cannot be read. The next run would fail in the same way."""


@contextmanager
def machine_errors() -> Iterator[None]:
    """Turn an :class:`OSError` that is not the program's fault into a :class:`MachineError`."""
    try:
        yield
    except OSError as error:
        if (reason := refusal(error)) is None:
            raise
        where = f"{error.filename}: " if error.filename is not None else ""
        raise MachineError(
            f"{where}{reason}. Finished work is kept; fix this and run the same command again"
        ) from error


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn a failure to write ``path`` into a :class:`MachineError`, or a plain error if only this path is refused."""
    try:
        yield
    except Exception as error:
        number = error.errno if isinstance(error, OSError) else None
        if type(error).__name__ == "SafetensorError":  # which has the errno in its text
            match = re.search(r"os error (\d+)\)|code: (\d+),", str(error))
            number = int(match[1] or match[2]) if match else None
        reason = (REFUSALS | OF_ONE_FILE).get(number or 0)
        if reason is None:
            raise
        kind = PipelineError if number in OF_ONE_FILE else MachineError  # another place may do
        raise kind(
            f"cannot write {path}: {reason}. Finished work is kept: mend this, or name another place (--store,"
            " --reports, --output), and run the same command again"
        ) from error


def refusal(error: OSError) -> str | None:
    """Why the machine refused, in words; None if the program may be at fault."""
    if (error.strerror or "").startswith("No usable temporary directory"):  # Python's own; torch needs one
        return f"{error.strerror}: free some space in one of these, or name another folder in TMPDIR"
    if str(error).startswith("Matplotlib requires access to a writable"):  # its error has no number
        return str(error)
    # If our file is missing or already there, the program may well be at fault.
    reasons = {**OF_ONE_FILE, errno.ENOENT: None, errno.EEXIST: None, **REFUSALS}
    return reasons.get(error.errno or 0)


_SHORT = {"extra_forbidden": "unknown key", "missing": "missing"}


def validation_problems(error: ValidationError) -> list[str]:
    """One line per mistake, with its key: ``learning_rate: Input should be greater than 0 (got -1.0)``."""
    problems = []
    for item in error.errors(include_url=False):
        parts = [str(part) for part in item["loc"]]
        key = ".".join(part if part.isprintable() and len(part) <= 80 else shortened(part) for part in parts)
        problem = f"{item['msg'].removeprefix('Value error, ')} (got {shortened(item['input'])})"
        problems.append(f"{key or '(file)'}: {_SHORT.get(item['type'], problem)}")
    return problems


def shortened(value: object, most: int = 80) -> str:
    """``repr(value)`` for a message, cut in the middle if it is long; never raises."""
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # nested too deeply, or an integer of more digits than Python prints
        text = f"<{type(value).__name__}>"
    return text if len(text) <= most else f"{text[: most // 2]}...{text[-most // 4 :]}"


def printable(text: str) -> str:
    """``text`` with U+FFFD for control characters (except tabs and line breaks), lone surrogates and non-characters."""
    return _UNPRINTABLE.sub("\ufffd", text)


def one_line(text: str) -> str:
    """:func:`printable` with U+FFFD for line breaks too, so that quoted text cannot start a new line."""
    return _LINE_BREAK.sub("\ufffd", printable(text))


def few(lines: Sequence[str], most: int = 10) -> list[str]:
    """The first ``most`` of ``lines``, and how many more there are."""
    return [*lines[:most], *([f"{len(lines) - most} more"] if len(lines) > most else [])]


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The member of ``known`` whose spelling is nearest to ``name``; None if none is similar."""
    return next(iter(get_close_matches(name, list(known), n=1)), None)


def rows_text(numbers: Sequence[int]) -> str:
    """``row 62``, or ``rows 3, 17, ...`` with the first five."""
    return f"row{'s' if len(numbers) > 1 else ''} {', '.join(few([str(number) for number in numbers], 5))}"


@contextmanager
def noted(problems: list[str], where: str = "") -> Iterator[None]:
    """Add the message of a :class:`PipelineError`, after ``where``, to ``problems`` instead of raising it."""
    try:
        yield
    except PipelineError as error:
        problems.append(f"{where}{error}")


def raise_all(where: str, problems: Sequence[str]) -> None:
    """Raise one :class:`PipelineError` that lists every problem in ``where`` once; do nothing if there is none."""
    if unique := list(dict.fromkeys(problems)):
        count = "1 problem" if len(unique) == 1 else f"{len(unique)} problems"
        raise PipelineError(f"{where}: {count}\n" + "\n".join(f"  {problem}" for problem in unique))


def make_all(where: str, items: Sequence[T], make: Callable[[T], R]) -> list[R]:
    """Call ``make`` on every item.

    Raises:
        PipelineError: with one item, its error; with several, one error that lists all problems in ``where``.
    """
    if len(items) == 1:
        return [make(items[0])]
    made, problems = list[R](), list[str]()
    for item in items:
        with noted(problems):
            made.append(make(item))
    raise_all(where, [problem.replace("\n", "\n  ") for problem in problems])
    return made
