"""Locks between processes. The kernel releases a lock when the process that holds it ends, however it ends."""

from __future__ import annotations

import errno
import fcntl
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pipeline.system.errors import PipelineError, writing

_HELD_ELSEWHERE = (errno.EAGAIN, errno.EACCES)
_UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)

_warned: set[int] = set()
"""Device numbers of the file systems without locks that the user has been warned of."""


def open_lock(file: Path) -> int:
    """A descriptor of the lock file ``file``, which is created if it is missing."""
    # Network file systems lock only files that are open for writing.
    return os.open(file, os.O_RDWR | os.O_CREAT, 0o666)


def try_lock(descriptor: int, kind: int = fcntl.LOCK_EX) -> bool:
    """Lock an open file until its descriptor is closed; False if another process holds it.

    Raises:
        OSError: the file system has no locks.
    """
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _HELD_ELSEWHERE:
            raise
        return False
    return True


@contextmanager
def locked(file: Path, if_held: PipelineError | None = None) -> Iterator[None]:
    """Hold the lock of ``file``; the file itself stays behind.

    On a file system without locks, work goes on after a warning. Everything is written atomically, so two commands at
    once cost time, not results.

    Args:
        if_held: raised if another process holds the lock; None waits for it, and says so on stderr.

    Raises:
        PipelineError: ``if_held``, or the file cannot be written.
    """
    with writing(file):
        descriptor = open_lock(file)
    try:
        with writing(file):
            supported = _acquire(descriptor, file, if_held)
        try:
            yield
        finally:
            if supported:
                # Closing is not enough: a child process forked in the meantime has the file open too.
                fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)


def is_held(file: Path) -> bool:
    """Whether another process holds the lock of ``file``; unknown counts as no."""
    with suppress(OSError):
        descriptor = os.open(file, os.O_RDONLY)
        try:
            # Shared, so that those who only ask do not block each other.
            return not try_lock(descriptor, fcntl.LOCK_SH)
        finally:
            os.close(descriptor)
    return False


def _acquire(descriptor: int, file: Path, if_held: PipelineError | None) -> bool:
    """Lock the open ``file``; False if its file system has no locks."""
    try:
        if not try_lock(descriptor):
            if if_held is not None:
                raise if_held
            print(f"waiting for another process to finish writing {file.parent}", file=sys.stderr, flush=True)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        _warn_once(os.fstat(descriptor).st_dev, file, error)
        return False
    return True


def _warn_once(device: int, file: Path, error: OSError) -> None:
    if device not in _warned:
        _warned.add(device)
        print(
            f"warning: {file.parent}: its file system has no file locks ({error.strerror}): run one command at a time"
            " here, or keep reports on another file system (--reports FOLDER)",
            file=sys.stderr,
            flush=True,
        )
