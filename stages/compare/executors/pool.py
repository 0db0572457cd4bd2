"""What all executors share: a pool that carries out cells elsewhere, and how a cell is carried out there.

A cell is pickled work that takes its inputs from the ledger and the store and leaves its results there. A cell that is
lost with its process or machine can therefore be carried out again anywhere, and resumes from its last checkpoint.

``python -m stages.compare.executors.pool WORK OUTCOME`` is what ``accelerate launch`` starts on each GPU of a cell, and
with a connection's number instead it is a worker on this machine. Neither imports torch or the stages: a cell does.
"""

import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, redirect_stdout, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from pipeline.system import process, streams
from pipeline.system.errors import BUG, MachineError, PipelineError, machine_errors

_ENDING_SECONDS = 60.0
"""How long launched processes may take to end. The launcher kills them itself if they take half as long."""


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
        with redirect_stdout(sys.stderr), machine_errors():
            return Outcome(pickle.loads(work)())
    except MachineError as error:
        return Outcome(error=MachineError(str(error)))
    except PipelineError as error:
        return Outcome(error=PipelineError(str(error)))
    except Exception as error:
        return Outcome(error=bug(error))


def carried_out_here(work: bytes, threads: int, processes: int) -> Outcome:
    """Carry out a cell in this process, or in several where there are several GPUs for it.

    Args:
        threads: of torch, all processes together; of a single one the environment's number wins.
    """
    if processes == 1:
        os.environ.setdefault("OMP_NUM_THREADS", str(threads))
        process.set_up()
        return carried_out(work)
    with tempfile.TemporaryDirectory(prefix="cell-") as folder:
        task, outcome = Path(folder, "work"), Path(folder, "outcome")
        task.write_bytes(work)
        environment = os.environ | {"OMP_NUM_THREADS": str(max(1, threads // processes))}
        with subprocess.Popen(launch_command(processes, task, outcome), env=environment) as launcher:
            try:
                status = launcher.wait()
            except BaseException:  # asked to end, as those that it launched are now, and waited for
                launcher.terminate()  # which it passes on; killed, it would leave them running
                with suppress(subprocess.TimeoutExpired):
                    launcher.wait(_ENDING_SECONDS)
                launcher.kill()
                raise
        if not outcome.exists():
            return Outcome(error=PipelineError(f"accelerate launch ended with status {status}; see its output"))
        ended: Outcome = pickle.loads(outcome.read_bytes())
        return ended


def launch_command(processes: int, work: Path, outcome: Path) -> list[str]:
    """The command that trains the cell in the file ``work`` with so many processes, each on a GPU of its own."""
    # Every value is given: what accelerate config left on a machine must not decide.
    options = {"num_processes": processes, "num_machines": 1, "mixed_precision": "no", "dynamo_backend": "no"}
    named = [f"--{name}={value}" for name, value in options.items()]
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", *named, "--main_process_port=0"]
    return [*launch, "--module", "stages.compare.executors.pool", str(work), str(outcome)]


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


def _work(descriptor: int) -> None:
    """Carry out cells that come through a connection, until the main process closes the pool or however it ends."""
    cells = Connection(descriptor)
    threading.Thread(target=_end_with_main_process, daemon=True).start()
    with suppress(EOFError, OSError):  # what a cell finished is in the ledger
        while True:
            cells.send(carried_out(cells.recv_bytes()))


def _end_with_main_process() -> None:
    os.read(0, 1)  # it writes nothing there
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> int:
    process.handle_signals()
    process.set_up()
    try:
        if len(sys.argv) == 2:
            streams.set_up()
            _work(int(sys.argv[1]))
            return 0
        work, outcome = map(Path, sys.argv[1:])
        ended = carried_out(work.read_bytes())
    except KeyboardInterrupt as interrupt:
        return process.interrupt_status(interrupt)
    if process.is_main_process():
        outcome.write_bytes(pickle.dumps(ended))
    return 0


if __name__ == "__main__":
    from stages.compare.executors import pool  # else outcomes would be of classes of __main__

    sys.exit(pool.main())
