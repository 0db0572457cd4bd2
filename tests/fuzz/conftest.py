"""The room that each case gets."""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import count
from pathlib import Path

import pytest

from tests.fuzz.fuzz_guard import confined

Room = Callable[[], AbstractContextManager[Path]]


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Room:
    """A fresh working folder a case: ``with room() as folder``. Nothing outside it may change, and time is bounded."""
    numbers = count()

    @contextmanager
    def enter() -> Iterator[Path]:
        # Two folders deep, so that "../.." of a name is still a folder of this case.
        folder = tmp_path / str(next(numbers)) / "outer" / "inner"
        folder.mkdir(parents=True)
        monkeypatch.chdir(folder)
        monkeypatch.setattr(tempfile, "tempdir", str(folder))
        monkeypatch.setattr(os, "fsync", lambda _: None)  # no case outlives a power cut
        for name in ("HOME", "PIPELINE_CACHE"):
            monkeypatch.setenv(name, str(folder / "home"))
        with confined(folder):
            yield folder

    return enter
