"""What all executors share: the protocol of a pool, and the function that runs a cell in another process.

A cell is a function without arguments that can be pickled; it reads from the ledger and the store and writes its
results there. If its process or machine is lost, it can run again anywhere, and resumes from its last checkpoint.

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
"""How long launched processes may take to end. The launcher itself kills them after half of that."""


class Outcome(NamedTuple):
    """The result of a cell: a value, or an error that the user can fix."""

    value: Any = None
    error: PipelineError | None = None
    place: str = ""
    """Where it ran, if that is worth a line."""


class Pool(Protocol):
    """Runs several cells at once. A cell is identified by the number passed to :meth:`start`."""

    @property
    def places(self) -> str:
        """Where cells run now, in words; may be empty."""

    @property
    def at_once(self) -> int:
        """How many cells can run at once now; at least one."""

    @property
    def memory_gb(self) -> float | None:
        """Main memory per running cell, GiB; None: not known."""

    def start(self, number: int, title: str, work: Callable[[], Any]) -> None:
        """Start a cell."""

    def wait(self, seconds: float) -> Sequence[tuple[int, Outcome]]:
        """The cells that have ended; waits up to ``seconds`` for the first."""


Executor = Callable[[], AbstractContextManager[Pool]]
"""Opens a pool. When it closes, running cells are asked to end; they can be resumed."""


def carried_out(work: Callable[[], Any]) -> Outcome:
    """Run a cell in this process. Errors are returned, so that they end neither the worker nor other cells."""
    try:
        # The main process prints results; output of libraries goes to standard error.
        with redirect_stdout(sys.stderr), machine_errors():
            return Outcome(work())
    except MachineError as error:
        return Outcome(error=MachineError(str(error)))
    except PipelineError as error:
        return Outcome(error=PipelineError(str(error)))
    except Exception as error:
        if process.process_count() > 1:  # the other processes would wait for this one
            raise
        traceback.print_exc()
        told = f"{BUG}{type(error).__name__}: {error} (its traceback is on standard error)"
        return Outcome(error=PipelineError(told))


def _received(work: bytes) -> Outcome:
    """Run a cell that another process sent. If its classes cannot be imported, that is the cell's error."""
    return carried_out(lambda: pickle.loads(work)())


def carried_out_here(work: bytes, threads: int, processes: int) -> Outcome:
    """Run a cell in this process, or in several, one for every GPU of the cell.

    Args:
        threads: number of torch threads, over all processes; for a single process, the environment overrides it.
    """
    if processes == 1:
        os.environ.setdefault("OMP_NUM_THREADS", str(threads))
        process.set_up()
        return _received(work)
    with tempfile.TemporaryDirectory(prefix="cell-") as folder:
        task, outcome = Path(folder, "work"), Path(folder, "outcome")
        task.write_bytes(work)
        environment = os.environ | {"OMP_NUM_THREADS": str(max(1, threads // processes))}
        with subprocess.Popen(launch_command(processes, task, outcome), env=environment) as launcher:
            try:
                status = launcher.wait()
            except BaseException:  # this process is asked to end: so are those that it launched
                launcher.terminate()  # passed on to them; a killed launcher would leave them running
                with suppress(subprocess.TimeoutExpired):
                    launcher.wait(_ENDING_SECONDS)
                launcher.kill()
                raise
        if not outcome.exists():
            return Outcome(error=PipelineError(f"accelerate launch ended with status {status}; see its output"))
        ended: Outcome = pickle.loads(outcome.read_bytes())
        return ended


def launch_command(processes: int, work: Path, outcome: Path) -> list[str]:
    """The command that runs the cell in the file ``work`` in several processes, one per GPU."""
    # All values are given, so that no accelerate config of the machine decides.
    options = {"num_processes": processes, "num_machines": 1, "mixed_precision": "no", "dynamo_backend": "no"}
    named = [f"--{name}={value}" for name, value in options.items()]
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", *named, "--main_process_port=0"]
    return [*launch, "--module", "stages.compare.executors.pool", str(work), str(outcome)]


def lost(why: str, times: int | None = None) -> PipelineError:
    """The error of a cell that is given up because its worker was lost, ``times`` times if that is known."""
    often = "" if times is None else f" {times} times"
    return PipelineError(
        f"its worker was lost{often} ({why}). If memory ran out, run fewer cells at once (--jobs) or give each more"
        " ([resources] of the study)"
    )


def broken(trace: str) -> PipelineError:
    """The error of a cell that could not run where it was sent; its ``trace`` goes to standard error."""
    print(trace, file=sys.stderr)
    reason = next((line.strip() for line in reversed(trace.splitlines()) if line.strip()), "no reason is known")
    return PipelineError(f"its worker failed: {reason} (the trace is on standard error)")


def _work(descriptor: int) -> None:
    """Run the cells that come through a connection, until the main process closes the pool or ends."""
    cells = Connection(descriptor)
    threading.Thread(target=_end_with_main_process, daemon=True).start()
    with suppress(EOFError, OSError):  # finished work is in the ledger
        while True:
            cells.send(_received(cells.recv_bytes()))


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
        ended = _received(work.read_bytes())
    except KeyboardInterrupt as interrupt:
        return process.interrupt_status(interrupt)
    if process.is_main_process():
        outcome.write_bytes(pickle.dumps(ended))
    return 0


if __name__ == "__main__":
    from stages.compare.executors import pool  # else outcomes would be of classes of __main__

    sys.exit(pool.main())
