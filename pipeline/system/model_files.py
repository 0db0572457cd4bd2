"""JSON files of one pydantic model, each parsed again only when it has changed.

Most of the time of listing thousands of small files goes into opening them. Their *index*, one file beside them, holds
the contents of all, each with the stamp that its file had when it was read. The index is only a cache: it may be
missing, stale, damaged or unwritable, and two processes may write it at once. Whatever decides a result is read from
the file itself (:meth:`ModelFiles.read`).
"""

from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from pipeline.system.atomic import sha256_text, write_text
from pipeline.system.errors import PipelineError
from pipeline.system.reading import read_model, read_text, reading

Model = TypeVar("Model", bound=BaseModel)

Stamp = tuple[int, int, int, int]  # when content and status last changed (ns), size (bytes), inode

_FEW = 32  # reading this many files is as fast as reading an index
_STALE_SHARE = 0.02  # the index is rewritten when more than this share of the files are missing from it, or gone


class ModelFiles(Generic[Model]):
    """Files that each hold one ``model`` as JSON; ``remedy`` says what to do about a damaged one.

    The file ``index`` stands in a folder above all of them; None keeps none.
    """

    def __init__(self, model: type[Model], remedy: str, index: Path | None = None) -> None:
        self._model, self._remedy, self.index = model, remedy, index
        self._read: dict[Path, tuple[Stamp, Model]] = {}
        self._indexed: dict[Path, tuple[Stamp, Model]] | None = None
        self._entries = TypeAdapter(dict[str, tuple[Stamp, model]])  # type: ignore[valid-type]

    def read(self, file: Path) -> Model | None:
        """The model in ``file`` as it is on disk now; None if there is no such file."""
        try:
            with reading(file):
                stamp = _stamp(file)
            if file not in self._read or self._read[file][0] != stamp:
                self._read[file] = stamp, read_model(self._model, file, self._remedy)
        except PipelineError as error:
            # Another process may delete it between two looks. A link to nothing is damage.
            if isinstance(error.__cause__, FileNotFoundError | NotADirectoryError) and not file.is_symlink():
                return None
            raise
        return self._read[file][1]

    def read_all(self, files: Iterable[Path]) -> dict[Path, Model | PipelineError]:
        """The model of each of ``files`` that exists, or why it cannot be read. The index holds no others."""
        listed = list(files)
        known = self._known(listed)
        models = {file: known.get(file) or self._attempt(file) for file in listed}
        self._renew_index(models.keys(), known.keys())
        return {file: model for file, model in models.items() if model is not None}

    def _attempt(self, file: Path) -> Model | PipelineError | None:
        try:
            return self.read(file)
        except PipelineError as error:
            return error

    def _known(self, files: Collection[Path]) -> dict[Path, Model]:
        """The models of files that have not changed since this process, or the writer of the index, read them."""
        if self.index is None or len(files) <= _FEW:
            return {}
        if self._indexed is None:
            self._indexed = self._read_index(self.index)
        candidates = self._indexed | self._read
        known = {}
        for file in files:
            with suppress(KeyError, OSError):
                stamp, model = candidates[file]
                if _stamp(file) == stamp:
                    known[file] = model
        return known

    def _read_index(self, index: Path) -> dict[Path, tuple[Stamp, Model]]:
        """The entries of the index; none if it is missing, damaged or of another version."""
        with suppress(PipelineError, ValidationError):
            checksum, _, text = read_text(index).partition("\n")
            if sha256_text(text) == checksum:
                entries = self._entries.validate_json(text)
                return {index.parent / name: entry for name, entry in entries.items()}
        return {}

    def _renew_index(self, files: Collection[Path], known: Collection[Path]) -> None:
        if self.index is None or self._indexed is None:
            return
        changed = sum(file not in known for file in files) + len(self._indexed.keys() - files)
        if changed > max(_FEW, _STALE_SHARE * len(files)):
            entries = self._indexed | self._read
            self._indexed = {file: entries[file] for file in files if file in entries}
            named = {file.relative_to(self.index.parent).as_posix(): entry for file, entry in self._indexed.items()}
            # Only the keys that the files set: the rest may have other defaults in another version.
            text = self._entries.dump_json(named, exclude_unset=True).decode()
            with suppress(PipelineError, OSError):  # where it cannot be written, the files are read each time
                write_text(self.index, f"{sha256_text(text)}\n{text}")


def _stamp(file: Path) -> Stamp:
    status = file.stat()
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino
