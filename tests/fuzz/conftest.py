"""The profile of every fuzz test, and the room that each case gets.

``FUZZ_CASES`` is the number of cases over all properties together. In the suite it is small and the cases are the same
each time; ``make fuzz`` runs more, at random, from a seed that it prints.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import count
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings

from fuzz_guard import confined

SUITE_CASES = 300

HERE = Path(__file__).parent
# Settings are fixed when a test is decorated, before pytest knows how many there are.
_PROPERTIES = sum(file.read_text(encoding="utf-8").count("\n@given(") for file in HERE.glob("test_*.py"))
_CASES = int(os.environ.get("FUZZ_CASES", SUITE_CASES))

settings.register_profile(
    "fuzz",
    max_examples=max(1, _CASES // _PROPERTIES),
    deadline=None,
    database=None,
    derandomize="FUZZ_CASES" not in os.environ,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)
settings.load_profile("fuzz")


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
