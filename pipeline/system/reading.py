"""Read files that a person or another program wrote. Any fault raises a :class:`PipelineError` of one line.

Whether ``--backbone`` names a folder or a Hub id is told here too, without a library that reads models.
"""

import errno
import json
import os
import stat
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ValidationError

from pipeline.system.errors import OF_ONE_FILE, REFUSALS, MachineError, PipelineError, shortened, validation_problems

Model = TypeVar("Model", bound=BaseModel)

# What libraries raise for content they cannot read; an OSError without a number is Arrow's.
_CONTENT = (ValueError, KeyError, TypeError, EOFError, OSError)
_ARROW = ("ArrowException", "ArrowNotImplementedError")
_FOREIGN = (*_ARROW, "SafetensorError", "BadZipFile", "LZMAError", "TarError", "error")


@contextmanager
def reading(file: Path, remedy: str = "", missing: str | None = None) -> Iterator[None]:
    """Turn any error from reading ``file``, except a :class:`PipelineError`, into ``FILE: reason: remedy``.

    Args:
        remedy: what to do if the file is missing or damaged; other failures name theirs.
        missing: what to do if it is missing, if that differs.
    """
    try:
        yield
    except Exception as error:
        if missing is not None and isinstance(error, FileNotFoundError):
            remedy = missing
        reason = _reason(error, f": {remedy}" if remedy else "")
        if reason is None:
            raise
        is_refusal = isinstance(error, OSError) and error.errno in REFUSALS
        raise (MachineError if is_refusal else PipelineError)(f"{file}: {reason}") from error


def _reason(error: Exception, remedy: str) -> str | None:
    """What is wrong with a file and what to do about it; None if ``error`` is not the file's fault."""
    match error:
        case OSError() if error.errno is not None or error.strerror is not None:
            reason = (REFUSALS | OF_ONE_FILE).get(error.errno or 0, error.strerror or str(error))
            return f"{reason}{remedy}" if error.errno == errno.ENOENT else reason
        case ValidationError():
            damage = validation_problems(error)[0]
        case UnicodeDecodeError():
            damage, remedy = f"not UTF-8 text (byte {error.start})", remedy or ": save it as UTF-8"
        case RecursionError():
            damage = "nested too deeply"
        case MemoryError():
            damage = "larger than this machine's memory"
        case _ if isinstance(error, _CONTENT) or {kind.__name__ for kind in type(error).__mro__} & {*_FOREIGN}:
            lines = str(error).strip().splitlines()
            damage = lines[0][:200] if lines else type(error).__name__
        case _:
            return None
    return f"cannot be read ({damage}){remedy}"


def present(file: Path) -> bool:
    """Whether ``file`` exists, even as a folder or a broken link; a :class:`PipelineError` if this is unknown.

    ``Path.is_file`` would report a folder as missing.
    """
    with reading(file):
        try:
            file.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True


def check_regular(file: Path) -> None:
    """Raise an :class:`OSError` unless ``file`` is a regular file: opening a pipe would wait for its writer."""
    if stat.S_ISDIR(mode := file.stat().st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(file))
    if not stat.S_ISREG(mode):
        raise OSError(None, "not a regular file", str(file))


def read_text(file: Path, remedy: str = "") -> str:
    """The UTF-8 text of ``file``, without a byte order mark."""
    with reading(file, remedy):
        check_regular(file)
        return file.read_text(encoding="utf-8-sig")


def read_toml(file: Path) -> dict[str, Any]:
    text = read_text(file)
    with reading(file, "write it as TOML"):
        return tomllib.loads(text)


def read_json(file: Path, remedy: str) -> Any:
    text = read_text(file, remedy)
    with reading(file, remedy):
        return json.loads(text)


def read_model(model: type[Model], file: Path, remedy: str) -> Model:
    """Parse the JSON in ``file`` into a ``model``; if it does not fit, the error names the first mistake."""
    text = read_text(file, remedy)
    with reading(file, remedy):
        return model.model_validate_json(text)


class ModelFiles(Generic[Model]):
    """Files that hold one ``model`` as JSON; a file is parsed again only if it has changed.

    ``remedy`` says what to do about a damaged file.
    """

    def __init__(self, model: type[Model], remedy: str) -> None:
        self._model, self._remedy = model, remedy
        self._read: dict[Path, tuple[tuple[int, ...], Model]] = {}

    def read(self, file: Path) -> Model | None:
        """The model in ``file`` as it is on disk now; None if there is no such file."""
        with reading(file):
            try:
                status = file.stat()
            except (FileNotFoundError, NotADirectoryError):
                return None
        stamp = status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino
        if file not in self._read or self._read[file][0] != stamp:
            self._read[file] = stamp, read_model(self._model, file, self._remedy)
        return self._read[file][1]


def refused(name: str, problem: str) -> PipelineError:
    """The error for a backbone that cannot be used."""
    return PipelineError(f"backbone '{name}': {problem}")


def is_folder(name: str) -> bool:
    """Whether ``name`` is a folder with a readable configuration; otherwise it is a Hub id.

    Raises:
        PipelineError: a folder without a configuration, or neither a folder nor an id.
    """
    try:
        is_directory = Path(name).is_dir()
    except (OSError, ValueError):  # a name too long, or one with a null byte
        raise PipelineError(f"backbone {shortened(name)}: neither a folder nor a Hub id (--backbone)") from None
    if not is_directory:
        if name.startswith((".", "/", "~")) or name.count("/") > 1:
            raise refused(name, "no such folder (--backbone takes a folder or a Hub id)")
        return False
    file = Path(name) / "config.json"
    if not file.exists():
        raise refused(name, "the folder has no config.json: give the folder of an encoder")
    if not isinstance(read_json(file, remedy := "copy it again"), dict):
        raise PipelineError(f"{file}: not a configuration: {remedy}")
    return True


def backbone_text(name: str) -> str:
    """A Hub id, or the folder's name without its path, which only matters on this machine."""
    return Path(name).name if Path(name).is_absolute() else name
