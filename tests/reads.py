"""Count how often the tensors of a folder's safetensors files are read, and the files as bytes, as for a hash."""

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import safetensors
import safetensors.torch
import transformers.modeling_utils

import pipeline.models.tensors

_real = safetensors.safe_open
_MODULES = (safetensors, safetensors.torch, transformers.modeling_utils, pipeline.models.tensors)
_counting: list[tuple[Path, Counter[str]]] = []


def _count(path: object, *names: str) -> None:
    for folder, counter in _counting:
        if isinstance(path, str | Path) and Path(path).parent.resolve() == folder:
            counter.update(names)


class _Slice:
    def __init__(self, real: Any, path: object, name: str) -> None:
        self._real, self._path, self._name = real, path, name

    def __getitem__(self, index: object) -> Any:
        _count(self._path, self._name)
        return self._real[index]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class _Opened:
    """A ``safe_open`` that counts reads of tensors, not of headers."""

    def __init__(self, path: Any, *arguments: Any, **keywords: Any) -> None:
        self._real, self._path = _real(path, *arguments, **keywords), path

    def __enter__(self) -> "_Opened":
        self._real.__enter__()
        return self

    def __exit__(self, *arguments: Any) -> None:
        self._real.__exit__(*arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def get_slice(self, name: str) -> _Slice:
        return _Slice(self._real.get_slice(name), self._path, name)

    def get_tensor(self, name: str) -> Any:
        _count(self._path, name)
        return self._real.get_tensor(name)

    def get_tensors(self) -> Any:
        _count(self._path, *self._real.keys())
        return self._real.get_tensors()


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if _counting and event == "open" and str(arguments[0]).endswith(".safetensors"):
        _count(arguments[0], Path(str(arguments[0])).name)


sys.addaudithook(_audit)


@contextmanager
def reads_of(folder: Path) -> Iterator[Counter[str]]:
    """Count the reads in ``folder`` within the block, by name of tensor, or of file if it is read as bytes."""
    counter = Counter[str]()
    _counting.append((folder.resolve(), counter))
    with ExitStack() as patches:
        for module in _MODULES:
            patches.enter_context(mock.patch.object(module, "safe_open", _Opened))
        yield counter
    _counting.pop()
