"""What a file format of tables is.

Format modules import pandas and other heavy libraries inside their functions, so that a command can ask for suffixes
before its libraries load.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import pandas as pd

_UNNAMED = re.compile(r"Unnamed: [0-9]+")


def column_names(header: Iterable[object]) -> list[str]:
    """The names in a ``header``; a column without one is called by its position, as pandas does."""
    names = ["" if name is None else str(name) for name in header]
    return [name if name.strip() else f"Unnamed: {place}" for place, name in enumerate(names)]


def is_unnamed(column: str) -> bool:
    return _UNNAMED.fullmatch(column) is not None


@dataclass(frozen=True)
class Table:
    """A table that was read, and how its file is written."""

    rows: pd.DataFrame
    form: str
    """In words: ``csv, cp1252, semicolon``."""


class Reader(Protocol):
    def __call__(self, content: bytes, where: str, *, strict: bool) -> Table:
        """The table in ``content``, as it is written; ``where`` is the file, for messages.

        Args:
            strict: read only what this project writes, and guess at nothing: for splits, whose rows must be those that
                another reader finds.

        Raises:
            PipelineError: the content is no such table. Errors of the format's library may be raised too.
        """
        ...


@dataclass(frozen=True)
class Format:
    """A file format: everything that the project knows of it."""

    suffixes: tuple[str, ...]
    """In lower case; files are written with the first."""
    read: Reader
    write: Callable[[pd.DataFrame, Any], object]
    """To a path; csv to an open file too."""
    check: Callable[[pd.DataFrame], object]
    """Raises whatever :attr:`write` would raise for a table that the format cannot hold."""
    magic: bytes = b""
    """The first bytes of every such file, by which it is recognised under any suffix; empty for text."""
    usual: str = ""
    """A pattern of the :attr:`Table.form` that needs no notice; empty: no form does."""
    is_exact: bool = True
    """Whether what was written is read back to the last digit and the last blank row, as splits need it."""
