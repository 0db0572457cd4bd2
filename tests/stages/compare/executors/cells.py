"""Cells that need no model. Workers import this file, so it imports little."""

import os
import signal
import time
from pathlib import Path

from pipeline.system.errors import PipelineError


def refuse() -> None:
    raise PipelineError("fix this")


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


def once_preempted(mark: Path) -> str:
    """Told as Slurm tells a job that has to make room, it has not finished; run again, it has."""
    if mark.exists():
        return "done"
    mark.touch()
    os.kill(os.getpid(), signal.SIGUSR2)
    time.sleep(60)
    raise AssertionError


def place_in_group() -> tuple[str | None, ...]:
    return tuple(map(os.environ.get, ("WORLD_SIZE", "RANK", "OMP_NUM_THREADS")))


def until_interrupted(folder: Path) -> None:
    """Each process of a group leaves a file when it starts, and another when it is asked to end."""
    rank = os.environ["RANK"]
    (folder / f"{rank}.started").touch()
    try:
        time.sleep(60)
    except KeyboardInterrupt:
        (folder / f"{rank}.interrupted").touch()
        raise


class Unfit:
    """A cell on a node that cannot import what it needs."""

    def __call__(self, *_: object) -> None:
        raise ModuleNotFoundError("no such module on this node")
