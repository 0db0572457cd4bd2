"""Train every run once: take it from the ledger, or train it under a lock so that others find it.

Its record says where its numbers come from: commit, versions, hardware.
"""

import platform
import subprocess
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from pipeline.runs.workspace import Workspace
from pipeline.system.atomic import clear_leftovers
from pipeline.system.version import VERSION
from pipeline.training.devices import hardware, processor
from pipeline.training.process_group import on_main_process, process_count

Record = TypeVar("Record", covariant=True)


class Trainable(Protocol[Record]):
    """A run that can be trained, and the record that it leaves."""

    workspace: Workspace

    @property
    def name(self) -> str: ...

    def finished(self) -> Record | None:
        """The record, if everything that the run leaves is still there."""

    def train(self) -> Record: ...


@dataclass(frozen=True)
class Made(Generic[Record]):
    """The record of a finished run."""

    record: Record
    is_new: bool
    """Whether it was trained now rather than found finished."""


def get_or_train(run: Trainable[Record], force: bool = False) -> Made[Record]:
    """The finished record: found, or made by training (from the last checkpoint, if there is one).

    Args:
        force: train again even if finished; resume a checkpoint only if a call with ``force`` wrote it.

    Raises:
        RunBusy: another command is training the run.
    """
    ledger = run.workspace.ledger
    if not force and (record := on_main_process(run.finished)) is not None:
        # A process that was killed just after it finished the run may have left a half-written file.
        on_main_process(lambda: clear_leftovers(ledger.folder(run.name)))
        return Made(record, is_new=False)
    # If several processes train this run together, one holds the lock against other commands.
    with ExitStack() as held:
        on_main_process(lambda: held.enter_context(ledger.lock(run.name)))
        if force:
            on_main_process(lambda: ledger.begin_again(run.name))
        # Another command may have finished it between the first look and the lock.
        elif (record := on_main_process(run.finished)) is not None:
            return Made(record, is_new=False)
        record = run.train()
        on_main_process(lambda: ledger.drop_checkpoint(run.name))
    return Made(record, is_new=True)


@cache
def provenance() -> dict[str, Any]:
    """The commit of this code, whether it was changed, versions and hardware, as found by a process's first call."""
    commit, dirty = commit_of(Path(__file__).parent)
    return {
        "pipeline": VERSION,
        "commit": commit,
        "dirty": dirty,
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "transformers", "adapters")},
        "platform": platform.platform(),
        "hardware": hardware(process_count()),
        "processor": processor(),
        "processes": process_count(),
    }


def commit_of(folder: Path) -> tuple[str | None, bool | None]:
    """The commit of a folder's files, and whether any tracked file of the repository has changed since.

    Both are None if git tracks none of the folder's files, as in an environment within a checkout.
    """
    if not _git(folder, "ls-files", "."):
        return None, None
    return _git(folder, "rev-parse", "HEAD"), bool(_git(folder, "status", "--porcelain", "--untracked-files=no"))


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", folder, *arguments], capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
