"""Cells that need no model. Workers import this file, so it imports little."""

import os
import signal
from pathlib import Path

from pipeline.system.errors import PipelineError


def refuse() -> None:
    raise PipelineError("mend this")


def full_disk() -> None:
    raise OSError(28, "No space left on device", "reports/run.json")


def once_killed(mark: Path) -> str:
    if mark.exists():
        return "done"
    mark.touch()
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def printing() -> None:
    print("a line for people")
