"""Locks between processes. The kernel releases a lock when the process that holds it ends, however it ends.

On network storage the server does so for a machine that is gone, but not every server does. A lock that is held for
long is therefore *renewed*: its file names the machine that holds it, which touches the file now and then. Another
machine that finds it held, but not renewed for long, takes its place.
"""

import errno
import fcntl
import hashlib
import os
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from pipeline.system.errors import PipelineError, writing
from pipeline.system.streams import notice

try:
    _KERNEL = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
except OSError:
    _KERNEL = os.uname().nodename
MACHINE = hashlib.sha256(_KERNEL.encode()).hexdigest()[:6]
"""A mark of the running kernel, which containers share and a reboot changes."""

_RENEWAL_SECONDS = 30.0
_ABANDONED_SECONDS = 10 * 60.0
"""Long enough for storage that hangs for minutes, and for clocks that differ."""

_ASKING_SECONDS = 0.05
"""How long those who ask whether a lock is held may have it themselves, at most."""

_TRIES = 1000
"""So many only where storage never gives a file the same number twice; then a lock is taken as it is."""

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
def locked(file: Path, if_held: PipelineError | None = None, renewed: bool = False) -> Iterator[None]:
    """Hold the lock of ``file``, which is made with its folder if it is missing, and stays behind.

    ``renewed`` is for locks that are held for minutes or hours: other machines then need not wait for one that is gone.

    If another process holds it, raise ``if_held``; None waits, and says so on stderr. On a file system without locks,
    work goes on after a warning: everything is written atomically, so two commands at once cost time, not results.
    """
    with writing(file):
        if _is_abandoned(file):
            _give_up(file, if_held)
        lock, supported = _taken(file, if_held)
    with lock:
        ended = threading.Event()
        renewal = threading.Thread(target=_renew, args=(lock.fileno(), ended), daemon=True)
        try:
            if renewed and supported:
                with suppress(OSError):  # on a full disk it is a lock like others
                    lock.truncate(0)
                    os.write(lock.fileno(), MACHINE.encode())  # a buffer would be written again when it is closed
                renewal.start()
            yield
        finally:
            ended.set()
            if renewal.is_alive():
                renewal.join()  # before the file is closed, and its number given to another
            if supported:
                # Closing is not enough: a child process forked in the meantime has the file open too.
                fcntl.flock(lock, fcntl.LOCK_UN)


def _opened(file: Path) -> BinaryIO:
    """:func:`open_lock`, with the folder of ``file``, which another process may remove at any moment."""
    for _ in range(100):  # a link to nothing is never made
        with suppress(FileNotFoundError, FileExistsError):
            file.parent.mkdir(parents=True, exist_ok=True)
            return open_lock(file)
    file.parent.mkdir(parents=True, exist_ok=True)
    return open_lock(file)


def is_held(file: Path) -> bool:
    """Whether another process holds the lock of ``file``; unknown counts as no, and so does a machine that is gone."""
    with suppress(OSError), file.open("rb") as lock:
        # Shared, so that those who only ask do not block each other.
        return not try_lock(lock, fcntl.LOCK_SH) and not _is_abandoned(file)
    return False


def _is_abandoned(file: Path) -> bool:
    """Whether another machine once held the lock of ``file``, renewed it, and has stopped to do so."""
    with suppress(OSError):
        owner = file.read_bytes()
        return owner not in (b"", MACHINE.encode()) and time.time() - file.stat().st_mtime > _ABANDONED_SECONDS
    return False


def _give_up(file: Path, if_held: PipelineError | None) -> None:
    """Let an abandoned lock be another file than the one of that name from now on.

    Who is gone keeps its lock on a file without a name. Should it come back after all, two processes do the same work:
    that costs time, not results.
    """
    turn = file.with_name(f"{file.name}.abandoned")
    # One at a time, and each looks again: the file may already be that of the process before.
    with locked(turn, if_held):
        if _is_abandoned(file):
            file.unlink(missing_ok=True)
        turn.unlink(missing_ok=True)


def _renew(lock: int, ended: threading.Event) -> None:
    while not ended.wait(_RENEWAL_SECONDS):
        with suppress(OSError):
            os.utime(lock)


def _try_for_a_moment(lock: BinaryIO) -> bool:
    """:func:`try_lock`, but not in vain because another process is asking whether the lock is held."""
    deadline = time.monotonic() + _ASKING_SECONDS
    while not (taken := try_lock(lock)) and time.monotonic() < deadline:
        time.sleep(0.001)
    return taken


def _taken(file: Path, if_held: PipelineError | None) -> tuple[BinaryIO, bool]:
    """``file``, open and locked, and whether its file system has locks.

    A file that was deleted before its lock was had keeps nobody from locking another of that name.
    """
    for left in reversed(range(_TRIES)):
        lock = _opened(file)
        with suppress(FileNotFoundError), ExitStack() as opened:
            opened.enter_context(lock)
            supported = _acquire(lock, file, if_held)
            if not left or os.path.samestat(os.fstat(lock.fileno()), file.stat()):
                opened.pop_all()
                return lock, supported
    raise PipelineError(f"cannot lock {file}: it disappears again and again: find out what deletes it")


def _acquire(lock: BinaryIO, file: Path, if_held: PipelineError | None) -> bool:
    """Wait for ``lock``, the open ``file``; False if its file system has no locks."""
    try:
        if not _try_for_a_moment(lock):
            if if_held is not None:
                raise if_held
            notice(f"waiting for another process to finish writing {file.parent}")
            fcntl.flock(lock, fcntl.LOCK_EX)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        device = file.stat().st_dev
        if device not in _warned:
            _warned.add(device)
            notice(
                f"warning: {file.parent}: its file system has no file locks ({error.strerror}): run one command at a"
                " time here, or keep reports on another file system (--reports FOLDER)"
            )
        return False
    return True
