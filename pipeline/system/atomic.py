"""Files and folders that appear complete or not at all, the hashes that identify them, and locks between processes.

New content is written to a hidden *staging* folder beside its destination, then renamed; a folder to be removed is
first moved into one. A staging folder's name contains its process; it can be cleared once that process has ended.

Locks keep processes from writing at the same time. The kernel releases a lock when the process that holds it ends,
however it ends. A held lock is never taken from its holder: this machine cannot know whether another one is gone.
"""

import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import stat
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from pipeline.system.errors import PipelineError, writing
from pipeline.system.streams import notice


def canonical_json(value: Any) -> str:
    """JSON with sorted keys and no blanks. Equal values give equal text, so it can be hashed."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def sha256_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def sha256_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def make_folder(path: Path) -> Path:
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)
    return path


def check_writable(path: Path) -> None:
    """Raise the :class:`PipelineError` that writing ``path`` would raise later; leave nothing behind."""
    with _staging(path):
        pass


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path; on success flush the file there to disk and rename it onto ``path``.

    A replaced file passes on its permissions: a private file stays private.
    """
    with _staging(path) as (target, staging):
        temporary = staging / target.name
        yield temporary
        _complete(temporary, staging)
        with suppress(FileNotFoundError):  # nothing to replace
            temporary.chmod(target.stat().st_mode & 0o777)
        temporary.replace(target)
        _flush(target.parent)


def write_text(path: Path, text: str) -> None:
    with new_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    write_text(path, file_json(value))


def file_json(value: Any) -> str:
    """JSON in the form of :func:`write_json`, readable by people too."""
    return json.dumps(value, indent=2, sort_keys=True, allow_nan=False) + "\n"


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder; on success move it to ``path``. With several writers, the last wins.

    If it replaces a folder, readers find none for an instant; should the process be killed then, the next one restores
    it.
    """
    with _staging(path) as (target, staging):
        temporary = staging / target.name
        temporary.mkdir()
        yield temporary
        _complete(temporary, staging)
        old = staging / f"{target.name}.old"
        while True:
            with suppress(FileNotFoundError):
                if target.is_dir():
                    target.rename(old)
            try:
                temporary.rename(target)
                break
            except OSError as error:  # another process has put a folder there meanwhile
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                shutil.rmtree(old, ignore_errors=True)
        _flush(target.parent)


@contextmanager
def scratch_folder(path: Path) -> Iterator[Path]:
    """Yield a hidden folder beside ``path``, for files that are needed until the end of the block."""
    with _staging(path) as (target, staging):
        folder = staging / target.name
        folder.mkdir()
        yield folder


def remove_folder(path: Path) -> None:
    """Delete a folder, or a link to one. It leaves ``path`` at once, even if this process dies meanwhile."""
    if path.is_symlink():
        path.unlink()
        return
    with _staging(path) as (target, staging):
        gone = staging / target.name
        target.rename(gone)
        shutil.rmtree(gone)


def clear_leftovers(folder: Path, name: str | None = None) -> None:
    """Remove the staging folders that killed processes left in ``folder``: those for ``name``, or all.

    A folder that was being replaced is restored. A staging folder that may be in use stays: its process is running, or
    another machine made it less than a day ago.
    """
    for entry in list(folder.glob(".*.tmp")):
        match = _STAGING.fullmatch(entry.name)
        if match is not None and name in (None, match["name"]) and not _may_be_in_use(entry, match):
            _dispose(entry, folder / match["name"])


def leftovers(root: Path) -> list[Path]:
    """The staging folders anywhere below ``root`` that :func:`clear_leftovers` would remove."""
    folders = []
    for folder, names, _ in os.walk(root):
        for name in names:
            match = _STAGING.fullmatch(name)
            if match is not None and not _may_be_in_use(Path(folder, name), match):
                folders.append(Path(folder, name))
    return sorted(folders)


CLEARED = "the next command that writes there clears them"
"""What happens to :func:`leftovers`."""


def size_of(path: Path) -> int:
    """Bytes in a file, or in all files of a folder; 0 if there is nothing. Links are not followed."""
    total = 0
    with suppress(OSError):  # another process deleted it
        if not path.is_dir() or path.is_symlink():
            return path.lstat().st_size
    for folder, _, names in os.walk(path):
        for name in names:
            with suppress(OSError):
                total += Path(folder, name).lstat().st_size
    return total


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
    from filelock import FileLock, Timeout  # slow to import, and most commands lock nothing

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


_MACHINE = sha256_text(os.uname().nodename)[:6]
_STAGING = re.compile(r"\.(?P<name>.+)\.(?P<machine>[0-9a-f]{6})-(?P<process>\d+)-[0-9a-f]{8}\.tmp", re.DOTALL)
_A_DAY = 24 * 60 * 60.0


@contextmanager
def _staging(path: Path) -> Iterator[tuple[Path, Path]]:
    """The place to write ``path`` and a hidden folder beside it, which is deleted at the end."""
    target = Path(os.path.realpath(path))  # replace what a link points to, not the link
    make_folder(target.parent)
    with writing(path):
        if target.is_fifo() or target.is_char_device():
            raise PipelineError(f"cannot write {path}: not a regular file, which it would replace: name another place")
        clear_leftovers(target.parent, target.name)
        staging = target.with_name(f".{target.name}.{_MACHINE}-{os.getpid()}-{uuid.uuid4().hex[:8]}.tmp")
        staging.mkdir()
        try:
            yield target, staging
        finally:
            _dispose(staging, target)


def _may_be_in_use(staging: Path, name: re.Match[str]) -> bool:
    if name["machine"] == _MACHINE:
        return psutil.pid_exists(int(name["process"]))
    with suppress(OSError):
        return time.time() - staging.stat().st_mtime < _A_DAY
    return False


def _dispose(staging: Path, target: Path) -> None:
    """Delete a staging folder; put the old ``target`` back if the new one never took its place."""
    old = staging / f"{target.name}.old"
    if old.exists() and not target.exists():
        with suppress(OSError):  # another process was faster
            old.rename(target)
    shutil.rmtree(staging, ignore_errors=True)


def _complete(new: Path, staging: Path) -> None:
    """Give the new files the permissions that the umask allows, and flush them to disk.

    safetensors writes files that only the owner can read (0600), which would make a shared store useless to others.
    """
    # Taken from the staging folder: reading the umask would change it for all threads.
    allowed = staging.stat().st_mode & 0o666
    for path in (new, *new.rglob("*")):
        if path.is_file():
            path.chmod(stat.S_IMODE(path.stat().st_mode) | allowed)
        _flush(path)


def _flush(path: Path) -> None:
    """fsync, so that a rename never reaches the disk before the content."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
