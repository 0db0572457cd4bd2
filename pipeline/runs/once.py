"""Train every run once: take it from the ledger, or train it under a lock so that others find it."""

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from pipeline.runs.workspace import Workspace
from pipeline.system.atomic import clear_leftovers
from pipeline.training.process_group import on_main_process

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
