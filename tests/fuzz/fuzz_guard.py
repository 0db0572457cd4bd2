"""What every case is held to: it writes and deletes within its own folder alone, and ends in bounded time."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

MOST_SECONDS = 20.0
"""Of one case, many times what any should take: longer is a hang."""


class _TookTooLong(BaseException):
    """Derived from nothing that the code under test may catch."""


_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# Audit events of the standard library by the positions of their paths, each with that of its folder's descriptor.
_CHANGES: dict[str, tuple[tuple[int, int | None], ...]] = {
    "os.chmod": ((0, 2),),
    "os.chown": ((0, 3),),
    "os.link": ((1, 3),),
    "os.mkdir": ((0, 2),),
    "os.remove": ((0, 1),),
    "os.rename": ((0, 2), (1, 3)),
    "os.rmdir": ((0, 1),),
    "os.symlink": ((1, 2),),
    "os.truncate": ((0, None),),
    "os.utime": ((0, 3),),
    "shutil.rmtree": ((0, 1),),
}

# What Python and Hypothesis keep for themselves, whenever they come to it.
_CACHES = {"__pycache__", ".hypothesis"}

_allowed: Path | None = None
_violations: list[str] = []


@contextmanager
def confined(folder: Path) -> Iterator[None]:
    """Refuse to change anything outside ``folder``, and fail where that was tried or took too long."""
    global _allowed
    _violations.clear()
    _allowed = folder.resolve()
    try:
        with _alarm():
            yield
    except _TookTooLong:
        raise AssertionError(f"not over after {MOST_SECONDS} s") from None
    finally:
        _allowed = None
    assert not _violations, f"outside its folder: {_violations}"


@contextmanager
def _alarm() -> Iterator[None]:
    """Raise :class:`_TookTooLong` within after a while; pytest-timeout, which uses the same timer, gets it back."""

    def ring(*_: object) -> None:
        raise _TookTooLong

    handler = signal.signal(signal.SIGALRM, ring)
    left, interval = signal.setitimer(signal.ITIMER_REAL, MOST_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, left, interval)
        signal.signal(signal.SIGALRM, handler)


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if _allowed is None:
        return
    if event == "open":
        path, _, flags = arguments
        if flags & _WRITES:
            _check(event, path, None)
    elif event in _CHANGES:
        for position, descriptor in _CHANGES[event]:
            _check(event, arguments[position], None if descriptor is None else arguments[descriptor])


def _check(event: str, path: Any, folder: int | None) -> None:
    if isinstance(path, int):  # a file that is open already
        return
    base = Path.cwd() if folder in (None, -1) else Path(f"/proc/self/fd/{folder}")
    # The name itself counts, not what a link of that name leads to.
    named = base / os.fsdecode(path)
    place = Path(os.path.realpath(named.parent)) / named.name
    if not place.is_relative_to(_allowed) and not _CACHES & {*place.parts} and str(place) != os.devnull:
        _violations.append(f"{event} {place}")
        raise PermissionError(f"{event} {place}: outside the folder of this case")


sys.addaudithook(_watch)
