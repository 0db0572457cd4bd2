"""Files and folders that appear complete or not at all, and the hashes that identify them."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipeline.errors import writing


def canonical_json(value: Any) -> str:
    """JSON with sorted keys and no blanks: equal values give equal text, so it can be hashed."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def sha256_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def sha256_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def make_folder(path: Path) -> Path:
    """Create ``path`` and its parents; a :class:`~pipeline.errors.PipelineError` where that is refused."""
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)
    return path


def check_writable(path: Path) -> None:
    """Raise the :class:`~pipeline.errors.PipelineError` that writing ``path`` later would; leave nothing behind."""
    make_folder(path.parent)
    trial = _beside(path, "tmp")
    with writing(path):
        trial.mkdir()
        trial.rmdir()


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside ``path``; on success flush it to disk and rename it onto ``path``."""
    make_folder(path.parent)
    temporary = _beside(path, "tmp")
    try:
        with writing(path):
            yield temporary
            _flush(temporary)
            temporary.replace(path)
            _flush(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    with new_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2, sort_keys=True, allow_nan=False) + "\n")


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder beside ``path``; on success rename it onto ``path``, replacing what stood there.

    One process a path at a time: leftovers of a killed one are cleared away first.
    """
    make_folder(path.parent)
    recover_folder(path)
    temporary = _beside(path, "tmp")
    try:
        with writing(path):
            temporary.mkdir()
            yield temporary
            for file in temporary.rglob("*"):
                _flush(file)
            if path.exists() and not path.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
            if path.exists():
                # A folder cannot be renamed onto a non-empty one: step the old one aside first.
                old = _beside(path, "old")
                path.rename(old)
                temporary.rename(path)
                shutil.rmtree(old)
            else:
                temporary.rename(path)
            _flush(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def recover_folder(path: Path) -> None:
    """Undo a replacement of the folder ``path`` that was killed half way."""
    with writing(path):
        for left in path.parent.glob(f".{path.name}.*.old"):
            if path.exists():
                shutil.rmtree(left)
            else:
                left.rename(path)
        for left in path.parent.glob(f".{path.name}.*.tmp"):
            shutil.rmtree(left)


def _beside(path: Path, kind: str) -> Path:
    """A hidden name beside ``path`` that nothing else has; :func:`recover_folder` knows it by its kind."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.{kind}")


def _flush(path: Path) -> None:
    """fsync, so that a rename never outlives the bytes it names."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
