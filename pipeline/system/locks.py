"""Locks between processes. The kernel releases a lock when the process that holds it ends, however it ends.

A held lock is never taken from its holder: this machine cannot know whether another one is gone.
"""

import errno
import fcntl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from pipeline.system.errors import PipelineError, writing
from pipeline.system.streams import notice

_ASKING_SECONDS = 0.05
"""The longest time that :func:`is_held` in other processes may occupy a free lock."""

_UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)

_warned = set[int]()  # device numbers of file systems without locks


@contextmanager
def locked(file: Path, if_held: PipelineError | None = None) -> Iterator[None]:
    """Hold the lock of ``file``, which is created with its folder if missing, and is not removed.

    If another process holds it, raise ``if_held``, or with None wait and say so on stderr. On a file system without
    locks, warn and continue: all writes are atomic, so two commands at once waste time but no results.
    """
    lock = FileLock(file, fallback_to_soft=False)
    with writing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(_ASKING_SECONDS, poll_interval=0.001)
        except Timeout:
            if if_held is not None:
                raise if_held from None
            notice(f"waiting for another process to finish writing {file.parent}")
            lock.acquire()
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
            if (device := file.parent.stat().st_dev) not in _warned:
                _warned.add(device)
                notice(
                    f"warning: {file.parent}: its file system has no file locks ({error.strerror}): run one command at"
                    " a time here, or keep reports on another file system (--reports FOLDER)"
                )
    try:
        yield
    finally:
        lock.release()


def is_held(file: Path) -> bool:
    """Whether another process holds the lock of ``file``; unknown counts as no."""
    # Shared, so that processes that ask do not block each other, and read-only, so that anybody may ask.
    with suppress(OSError), file.open("rb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
