"""Files that a person or another program wrote. Whatever is wrong with one is a :class:`PipelineError` of one line.

A file may be missing, unreadable, a folder, a pipe that nobody writes to, not UTF-8, nested deeper than Python can
recurse, or hold a number too long to convert. The user can mend all of these, so none may end in a traceback.
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

from pipeline.system.errors import READING, PipelineError, validation_problems

Model = TypeVar("Model", bound=BaseModel)

# tomllib's time grows with the square of the parts of a key; no file of ours has three parts in one.
_DEEP_KEY = re.compile(r"(\.[\w-]+){100}")

# What libraries raise for content they cannot read that derives neither from ValueError nor from OSError.
_FOREIGN = ("SafetensorError", "ArrowException", "ArrowNotImplementedError", "BadZipFile", "error")


@contextmanager
def reading(file: Path, remedy: str = "") -> Iterator[None]:
    """Turn whatever reading ``file`` may raise into a :class:`PipelineError`: ``FILE: reason: remedy``.

    A :class:`PipelineError` raised within passes through as it is.

    Args:
        remedy: what the user should do if the file is missing or damaged; other failures have their own.
    """
    try:
        yield
    except PipelineError:
        raise
    except OSError as error:
        if error.errno is None and error.strerror is None:  # Arrow's own, about the content
            raise _damaged(file, _first_line(error), remedy) from error
        reason = READING.get(error.errno or 0, error.strerror or error)
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
    """Whether anything stands at ``file``, even a folder or a broken link; a :class:`PipelineError` if this is unknown.

    ``Path.is_file`` would report a folder as nothing at all.
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
    """The table in ``file``."""
    text = read_text(file)
    with reading(file, "write it as TOML"):
        if _DEEP_KEY.search(text):
            raise RecursionError
        return tomllib.loads(text)


def read_json(file: Path, remedy: str) -> Any:
    """The value in ``file``."""
    text = read_text(file, remedy)
    with reading(file, remedy):
        return json.loads(text)


def read_model(model: type[Model], file: Path, remedy: str) -> Model:
    """A ``model`` from the JSON in ``file``; where it does not fit, the error names the first mistake."""
    text = read_text(file, remedy)
    with reading(file, remedy):
        return model.model_validate_json(text)


def _damaged(file: Path, reason: str, remedy: str) -> PipelineError:
    return PipelineError(f"{file}: cannot be read ({reason})" + (f": {remedy}" if remedy else ""))


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__
