"""The moments of a command at which a kill hurts most: each time that it touches a file of the user's.

Python raises an audit event before each of these calls, so a process can count them, and end itself before one: while a
temporary file exists, between two renames, while a lock is held.
"""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KINDS = ("write", "flush", "rename", "lock", "remove", "mkdir")
_EVENTS = {
    "os.rename": "rename",
    "fcntl.flock": "lock",
    "os.mkdir": "mkdir",
    "os.chmod": "flush",  # new files get their permissions just before they are flushed to disk
    "os.remove": "remove",
    "os.rmdir": "remove",
    "shutil.rmtree": "remove",
}


@dataclass(frozen=True)
class Recording:
    """Makes a process write the kind of each moment in ``root`` to a file, one a line, as it comes."""

    root: str
    file: str

    def __call__(self) -> None:
        descriptor = os.open(self.file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        _at_each_moment(self.root, lambda kind: os.write(descriptor, f"{kind}\n".encode()))


@dataclass(frozen=True)
class Kill:
    """Makes a process send itself a signal at the moment with this number, counted from 0."""

    root: str
    number: int
    signal: int

    def __call__(self) -> None:
        from_moment(self.root, self.number, lambda passed, _: passed or os.kill(os.getpid(), self.signal))


def from_moment(root: str, number: int, act: Callable[[int, str], Any]) -> None:
    """Call ``act`` with 0, 1, 2 ... and the kind, at the moment ``number`` in ``root`` and at each that follows.

    The first one leaves the file :func:`mark_of` beside ``root``.
    """
    passed = -1

    def count(kind: str) -> None:
        nonlocal passed
        passed += 1
        if passed >= number:
            mark_of(root).touch()
            act(passed - number, kind)

    _at_each_moment(root, count)


def mark_of(root: str) -> Path:
    return Path(root).with_name("met")


def _at_each_moment(root: str, act: Callable[[str], Any]) -> None:
    owner = os.getpid()

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        kind = _EVENTS.get(event) if event != "open" else "write" if _writes(arguments) else None
        if kind is not None and os.getpid() == owner and _place(arguments[0]).startswith(root):
            act(kind)

    sys.addaudithook(hook)


def _writes(arguments: tuple[Any, ...]) -> bool:
    _, mode, flags = arguments
    return bool(flags & (os.O_WRONLY | os.O_RDWR)) if mode is None else any(letter in mode for letter in "wax+")


def _place(path: Any) -> str:
    """The absolute path of a file that is given by its path or, to ``flock``, by its descriptor."""
    if isinstance(path, int):
        return str(Path(f"/proc/self/fd/{path}").readlink())
    return str(Path.cwd() / os.fsdecode(path))
