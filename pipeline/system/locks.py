"""Locks between processes. The kernel releases a lock when the process that holds it ends, however it ends."""

import errno
import fcntl
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from pipeline.system.errors import PipelineError, writing

_UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)

_warned = set[int]()  # device numbers of file systems without locks that the user has been warned of


def open_lock(file: Path) -> BinaryIO:
    """The lock file ``file``, which is created if it is missing."""
    return file.open("ab")  # network file systems lock only files that are open for writing


def try_lock(lock: BinaryIO, kind: int = fcntl.LOCK_EX) -> bool:
    """Lock an open file until it is closed; False if another process holds the lock; OSError if there are no locks."""
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise
    return True


@contextmanager
def locked(file: Path, if_held: PipelineError | None = None) -> Iterator[None]:
    """Hold the lock of ``file``; the file itself stays behind.

    If another process holds it, raise ``if_held``; None waits, and says so on stderr. On a file system without locks,
    work goes on after a warning: everything is written atomically, so two commands at once cost time, not results.
    """
    with writing(file):
        lock = open_lock(file)
    with lock:
        with writing(file):
            supported = _acquire(lock, file, if_held)
        try:
            yield
        finally:
            if supported:
                # Closing is not enough: a child process forked in the meantime has the file open too.
                fcntl.flock(lock, fcntl.LOCK_UN)


def is_held(file: Path) -> bool:
    """Whether another process holds the lock of ``file``; unknown counts as no."""
    with suppress(OSError), file.open("rb") as lock:
        return not try_lock(lock, fcntl.LOCK_SH)  # shared, so that those who only ask do not block each other
    return False


def _acquire(lock: BinaryIO, file: Path, if_held: PipelineError | None) -> bool:
    """Wait for ``lock``, the open ``file``; False if its file system has no locks."""
    try:
        if not try_lock(lock):
            if if_held is not None:
                raise if_held
            print(f"waiting for another process to finish writing {file.parent}", file=sys.stderr, flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        device = file.stat().st_dev
        if device not in _warned:
            _warned.add(device)
            print(
                f"warning: {file.parent}: its file system has no file locks ({error.strerror}): run one command at a"
                " time here, or keep reports on another file system (--reports FOLDER)",
                file=sys.stderr,
                flush=True,
            )
        return False
    return True
