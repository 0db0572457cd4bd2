"""What all executors share: a pool that carries out cells elsewhere, and how a cell is carried out there.

A cell is pickled work that takes its inputs from the ledger and the store and leaves its results there. A cell that is
lost with its process or machine can therefore be carried out again anywhere, and resumes from its last checkpoint.
"""

import contextlib
import pickle
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

from pipeline.system.errors import BUG, MachineError, PipelineError, machine_errors


class Outcome(NamedTuple):
    """How a cell ended: with a value, or with an error that the user can fix."""

    value: Any = None
    error: PipelineError | None = None
    place: str = ""
    """Where it was carried out, if that is worth a line."""


class Pool(Protocol):
    """Carries out cells, several at once. Cells are told apart by the number that :meth:`start` is given."""

    @property
    def places(self) -> str:
        """Where cells run now, in words; empty where there is nothing to tell."""

    @property
    def at_once(self) -> int:
        """How many cells can run at the same time now, at least one."""

    @property
    def memory_gb(self) -> float | None:
        """The main memory in GiB that each of the cells that run at the same time has now; None: not known."""

    def start(self, number: int, title: str, work: bytes) -> None:
        """Begin to carry out a cell: ``work`` is a pickled function without arguments."""

    def wait(self, seconds: float) -> Sequence[tuple[int, Outcome]]:
        """The cells that have ended, as soon as there are any; none after so many ``seconds``."""


Executor = Callable[[], AbstractContextManager[Pool]]
"""Opens a pool. When the pool is closed, cells that still run are asked to end, and can be resumed."""


def carried_out(work: bytes) -> Outcome:
    """Carry out a cell in this process. An error does not leave: it must not end the worker, nor other cells."""
    try:
        # Results are for the main process to print: what libraries print here goes to standard error.
        with contextlib.redirect_stdout(sys.stderr), machine_errors():
            return Outcome(pickle.loads(work)())
    except MachineError as error:
        return Outcome(error=MachineError(str(error)))
    except PipelineError as error:
        return Outcome(error=PipelineError(str(error)))
    except Exception as error:
        return Outcome(error=bug(error))


def lost(why: str, times: int | None = None) -> PipelineError:
    """The error of a cell that is given up because its worker was lost, so many ``times`` if that is known."""
    often = "" if times is None else f" {times} times"
    return PipelineError(
        f"its worker was lost{often} ({why}). If memory ran out, run fewer cells at once (--jobs) or give each more"
        " ([resources] of the study)"
    )


def broken(trace: str) -> PipelineError:
    """The error of a cell that could not be carried out where it was sent; its ``trace`` goes to standard error."""
    print(trace, file=sys.stderr)
    reason = next((line.strip() for line in reversed(trace.splitlines()) if line.strip()), "no reason is known")
    return PipelineError(f"its worker failed: {reason} (the trace is on standard error)")


def bug(error: Exception) -> PipelineError:
    """The error of a cell that was ended by ``error``, which is being handled; its traceback goes to standard error."""
    traceback.print_exc()
    return PipelineError(f"{BUG}{type(error).__name__}: {error} (its traceback is on standard error)")
