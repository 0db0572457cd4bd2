"""Whatever is trained is trained once: found finished, or made under a lock and found from then on."""

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from pipeline.runs.workspace import Workspace
from pipeline.training.process_group import on_main_process

Record = TypeVar("Record", covariant=True)


class Trainable(Protocol[Record]):
    """A run before it is made, and the record of what it was that it leaves behind."""

    workspace: Workspace

    @property
    def name(self) -> str: ...

    def finished(self) -> Record | None:
        """The record, if everything the run leaves behind is still there."""

    def train(self) -> Record: ...


@dataclass(frozen=True)
class Made(Generic[Record]):
    """The record of a finished run."""

    record: Record
    is_new: bool
    """Whether it was made now; else it was found finished."""


def get_or_train(run: Trainable[Record], force: bool = False) -> Made[Record]:
    """The finished record: as it was left, or by training (from the last checkpoint, if there is one).

    Args:
        force: train it again if it is finished; from the checkpoint only if that is of a call with ``force`` too.

    Raises:
        RunBusy: another command is training the run.
    """
    ledger = run.workspace.ledger
    if not force and (record := on_main_process(run.finished)) is not None:
        on_main_process(lambda: ledger.tidy(run.name))
        return Made(record, is_new=False)
    # Of the processes that train this run together, one holds the lock against other commands.
    with ExitStack() as held:
        on_main_process(lambda: held.enter_context(ledger.lock(run.name)))
        if force:
            on_main_process(lambda: ledger.begin_again(run.name))
        # Another command may have finished it between the first look and the lock.
        elif (record := on_main_process(run.finished)) is not None:
            return Made(record, is_new=False)
        else:
            # A command that needs no more than the record would take the checkpoint for one that was left behind.
            on_main_process(lambda: ledger.make_up_for_model(run.name))
        record = run.train()
        on_main_process(lambda: ledger.drop_checkpoint(run.name))
    return Made(record, is_new=True)
