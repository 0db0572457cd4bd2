"""Run real commands without seconds of imports: they are forked from a process that has imported everything."""

import gc
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

_STAGES = ("compare.compare", "ensemble", "export", "extract", "fuse", "predict", "pretrain", "prune", "report", "runs")
_IMPORTED = [
    *("accelerate", "adapters", "datasets", "evaluate", "pandas", "pyarrow.parquet", "scipy.stats", "sklearn.metrics"),
    *("pipeline.cli.app", "pipeline.reporting.build", "pipeline.runs.build", "pipeline.runs.training_run"),
    *(f"stages.{stage}" for stage in _STAGES),
    "tests.forked",
]
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(_IMPORTED)


class Forked:
    """``python -m pipeline`` with these arguments in a new process with one thread.

    Args:
        environment: variables to change or add in the process's environment.
        prepare: a picklable function, called in the new process before the command.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str] | None = None,
        prepare: Callable[[], None] | None = None,
    ) -> None:
        handle, name = tempfile.mkstemp(suffix=".out")
        os.close(handle)
        self._output = Path(name)
        there = {**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})}
        began, begins = _context.Pipe(duplex=False)
        self._process: BaseProcess = _context.Process(
            target=_run, args=([*map(str, arguments)], there, str(self._output), begins, prepare)
        )
        self._process.start()
        begins.close()
        began.recv()  # from here on the command handles signals
        began.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self._process.is_alive():
            with suppress(ProcessLookupError):  # it may have just ended
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float) -> int:
        """The exit status, negative for a signal; raises a TimeoutError if the process does not end."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            self.kill()
            raise TimeoutError(f"still running after {timeout:.0f} s; it printed: {self.printed()}")
        return self._process.exitcode

    def first_line(self, timeout: float = 60.0) -> str:
        """The first line, as soon as it is printed in full; empty if the command ends without one."""
        deadline = time.monotonic() + timeout
        while "\n" not in self.printed() and self.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        return self.printed().partition("\n")[0]

    def printed(self) -> str:
        """The output on stdout and stderr so far."""
        return self._output.read_text(encoding="utf-8", errors="replace")

    def close(self) -> None:
        self.kill()
        self._process.join()
        self._output.unlink(missing_ok=True)


def run(arguments: Sequence[str], timeout: float = 120.0, prepare: Callable[[], None] | None = None) -> tuple[int, str]:
    """Run a command to its end; returns its exit status and output."""
    command = Forked(arguments, prepare=prepare)
    try:
        return command.wait(timeout), command.printed()
    finally:
        command.close()


def _run(
    arguments: list[str],
    environment: Mapping[str, str],
    output: str,
    begins: Connection,
    prepare: Callable[[], None] | None,
) -> None:
    # Every run collects garbage: it would walk a million imported objects, and copy their pages.
    gc.freeze()
    os.environ.clear()
    os.environ.update(environment)
    descriptor = os.open(output, os.O_WRONLY | os.O_APPEND)
    for standard in (1, 2):
        os.dup2(descriptor, standard)
    sys.argv = ["pipeline", *arguments]
    # As for a command in a shell's foreground.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    import torch

    from pipeline.__main__ import main
    from pipeline.system.process import handle_signals, report_interrupt

    torch.set_num_threads(int(environment["OMP_NUM_THREADS"]))
    if prepare is not None:
        prepare()
    try:
        handle_signals()
        begins.send(None)
        begins.close()
        status = main()
    except KeyboardInterrupt as interrupt:  # before main could handle it
        status = report_interrupt(interrupt, arguments)
    sys.exit(status)
