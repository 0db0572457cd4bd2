"""Files that a person or another program wrote: read here, so that whatever is wrong with one is told in one line.

A file may be missing, unreadable, a folder, a pipe that nobody writes to, not UTF-8, nested deeper than Python recurses
or hold a number too long to convert. All of these are the user's to mend, and none of them may end in a traceback.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from pipeline.system.errors import PipelineError, validation_problems

Model = TypeVar("Model", bound=BaseModel)

_READ_FAILURES = {
    errno.ENOENT: "no such file",
    errno.ENOTDIR: "no such file",
    errno.EISDIR: "a folder stands where a file is needed",
    errno.EACCES: "permission denied: make it readable",
    errno.EPERM: "permission denied: make it readable",
    errno.ENAMETOOLONG: "the name is too long",
    errno.ELOOP: "its links go round in a circle",
    errno.EIO: "the disk fails",
    errno.ESTALE: "the network file system lost it: try again",
}

# Such a key takes tomllib a time that grows with the square of its length; no file of ours has three parts in one.
_DEEP_KEY = re.compile(r"(\.[\w-]+){100}")

# Raised by libraries for content they cannot read, and not derived from ValueError or OSError.
_FOREIGN = ("SafetensorError", "ArrowException", "ArrowNotImplementedError", "BadZipFile", "error")


@contextmanager
def reading(file: Path, remedy: str = "") -> Iterator[None]:
    """Turn whatever reading ``file`` may raise into a :class:`PipelineError`: ``FILE: reason: remedy``.

    A :class:`PipelineError` raised within passes through as it is.

    Args:
        remedy: what the user should do about a missing file or damaged content; other failures have their own.
    """
    try:
        yield
    except PipelineError:
        raise
    except OSError as error:
        if error.errno is None and error.strerror is None:  # Arrow's, of content
            raise _damaged(file, _first_line(error), remedy) from error
        reason = _READ_FAILURES.get(error.errno or 0, error.strerror or error)
        mend = f": {remedy}" if error.errno == errno.ENOENT and remedy else ""
        raise PipelineError(f"{file}: {reason}{mend}") from error
    except ValidationError as error:
        raise _damaged(file, validation_problems(error)[0], remedy) from error
    except UnicodeDecodeError as error:
        raise _damaged(file, f"not UTF-8 text (byte {error.start})", remedy or "save it as UTF-8") from error
    except RecursionError as error:
        raise _damaged(file, "nested too deeply", remedy) from error
    except MemoryError as error:
        raise _damaged(file, "larger than this machine's memory", remedy) from error
    except Exception as error:
        if not isinstance(error, (ValueError, KeyError, TypeError, EOFError)) and type(error).__name__ not in _FOREIGN:
            raise
        raise _damaged(file, _first_line(error), remedy) from error


def present(file: Path) -> bool:
    """Whether anything stands at ``file``, be it a folder or a broken link.

    ``Path.is_file`` would take a folder for nothing at all, and what is there would be made again.

    Raises:
        PipelineError: the system does not say.
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
    """The UTF-8 text of ``file``, without a byte order mark.

    Raises:
        PipelineError: it cannot be read.
    """
    with reading(file, remedy):
        check_regular(file)
        return file.read_text(encoding="utf-8-sig")


def read_toml(file: Path) -> dict[str, Any]:
    """The table that ``file`` holds.

    Raises:
        PipelineError: it cannot be read, or is not TOML.
    """
    text = read_text(file)
    with reading(file, "write it as TOML"):
        if _DEEP_KEY.search(text):
            raise RecursionError
        return tomllib.loads(text)


def read_json(file: Path, remedy: str) -> Any:
    """What the JSON in ``file`` says.

    Raises:
        PipelineError: it cannot be read, or is not JSON.
    """
    text = read_text(file, remedy)
    with reading(file, remedy):
        return json.loads(text)


def read_model(model: type[Model], file: Path, remedy: str) -> Model:
    """A ``model`` from the JSON in ``file``.

    Raises:
        PipelineError: it cannot be read, or its content is not such a model; the first mistake is named.
    """
    text = read_text(file, remedy)
    with reading(file, remedy):
        return model.model_validate_json(text)


def _damaged(file: Path, reason: str, remedy: str) -> PipelineError:
    return PipelineError(f"{file}: cannot be read ({reason})" + (f": {remedy}" if remedy else ""))


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__
