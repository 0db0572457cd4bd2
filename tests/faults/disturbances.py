"""What a machine does to a command, short of killing it: from a moment on it refuses to write, or things change.

Each is called in the command's process before the command begins.
"""

import errno
import fcntl
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.faults.moments import from_moment, mark_of

_WRITES = ("write", "rename", "mkdir", "flush")
_DAY = 24 * 60 * 60.0


@dataclass(frozen=True)
class Refusal:
    """Nothing more is written from a moment on: the disk is full, its quota used up, it fails, or is read-only."""

    root: str
    number: int
    error: int

    def __call__(self) -> None:
        def refuse(_: int, kind: str) -> None:
            if kind in _WRITES:
                raise OSError(self.error, os.strerror(self.error), self.root)

        from_moment(self.root, self.number, refuse)


@dataclass(frozen=True)
class ClockBack:
    """At a moment the clock is set back by a day."""

    root: str
    number: int

    def __call__(self) -> None:
        now, offset = time.time, 0.0

        def set_back(_: int, __: str) -> None:
            nonlocal offset
            offset = _DAY

        time.time = lambda: now() - offset
        from_moment(self.root, self.number, set_back)


@dataclass(frozen=True)
class Vanishing:
    """At a moment all files and folders of these patterns are deleted: below ``root``, or below ``other``."""

    root: str
    number: int
    pattern: str
    other: str | None = None

    def __call__(self) -> None:
        def delete(passed: int, _: str) -> None:
            if passed == 0:
                for path in list(Path(self.other or self.root).glob(self.pattern)):
                    shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)

        from_moment(self.root, self.number, delete)


@dataclass(frozen=True)
class NoLocks:
    """The file system has no locks, as some on networks."""

    root: str

    def __call__(self) -> None:
        def refused(*_: Any) -> None:
            mark_of(self.root).touch()
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

        fcntl.flock = refused


DISTURBANCES: dict[str, Callable[[str, int, str], Callable[[], None]]] = {
    "disk full": lambda root, number, _: Refusal(root, number, errno.ENOSPC),
    "quota used up": lambda root, number, _: Refusal(root, number, errno.EDQUOT),
    "disk read-only": lambda root, number, _: Refusal(root, number, errno.EROFS),
    "disk fails": lambda root, number, _: Refusal(root, number, errno.EIO),
    "clock set back": lambda root, number, _: ClockBack(root, number),
    "no locks": lambda root, *_: NoLocks(root),
    "cache gone": lambda root, number, cache: Vanishing(root, number, "*", cache),
    "checkpoint gone": lambda root, number, _: Vanishing(root, number, "reports/runs/*/checkpoint"),
    "half-written gone": lambda root, number, _: Vanishing(root, number, "**/.*.tmp"),
}
"""By name: made for a command that works in a folder, from one of its moments on, with its cache in another folder."""
