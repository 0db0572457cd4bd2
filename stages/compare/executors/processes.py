"""Cells in several processes of this machine, which share its cores and GPUs; and the executors by name."""

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import torch

from pipeline.settings.study import ExecutorName, Resources
from pipeline.system import process
from pipeline.system.errors import PipelineError
from pipeline.training.devices import free_host_bytes, on_gpu
from pipeline.training.progress import console
from stages.compare.executors.pool import Executor, Outcome, Pool, lost

_ENDING_SECONDS = 60.0
"""How long workers may take to end once the pool is closed. A second Ctrl-C ends the wait."""

_THREADS = ("OMP_NUM_THREADS", "RAYON_NUM_THREADS")
"""The variables from which torch and the tokenizers read their number of threads."""


@contextmanager
def processes(jobs: int, retries: int = 3) -> Iterator[Pool]:
    """A pool of ``jobs`` processes, which share the cores evenly unless the environment sets the number of threads.

    If there are several GPUs, the processes take them in turn.

    Args:
        retries: how often a cell is run again after its process was killed.
    """
    pool = _Processes(jobs, retries, torch.cuda.device_count() if on_gpu() else 0)
    try:
        yield pool
    finally:
        pool.close()


class _Worker:
    """A process that runs one cell at a time; its output is printed here to standard error."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.cell: int | None = None
        self.cells, theirs = Pipe()
        # In a new session, Ctrl-C in a terminal does not reach it: we tell it, once.
        self.process = subprocess.Popen(
            [sys.executable, "-m", "stages.compare.executors.pool", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
        theirs.close()
        self._lines = threading.Thread(target=self._print_lines, daemon=True)
        self._lines.start()

    def start(self, cell: int, work: bytes) -> None:
        self.cell = cell
        with suppress(BrokenPipeError):  # it was killed while idle: :meth:`outcome` reports that
            self.cells.send_bytes(work)

    def outcome(self) -> Outcome | None:
        """The outcome of its cell, once :attr:`cells` can be read; None: the process has ended."""
        with suppress(EOFError, OSError):
            outcome: Outcome = self.cells.recv()
            return outcome
        return None

    def end(self) -> None:
        """Ask it to end, as it would if this process were gone."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    def join(self, seconds: float) -> None:
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(max(0.0, seconds))
        self.process.kill()
        self.process.wait()
        self._lines.join(1.0)
        self.cells.close()
        self.end()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def _print_lines(self) -> None:
        assert self.process.stdout is not None
        with suppress(OSError, ValueError):
            for line in self.process.stdout:
                console.print(line.decode(errors="backslashreplace").rstrip("\n"), markup=False)


class _Processes:
    def __init__(self, jobs: int, retries: int, gpus: int) -> None:
        self.at_once, self.places, self._retries = jobs, "", retries
        threads = str(max(1, process.cores() // jobs))
        self._environments = [{**dict.fromkeys(_THREADS, threads), **os.environ} for _ in range(jobs)]
        if gpus > 1:
            names = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(gpus)))).split(",")
            for place, environment in enumerate(self._environments):
                environment["CUDA_VISIBLE_DEVICES"] = names[place % len(names)]
        self._workers: dict[int, _Worker] = {}
        self._waiting: list[tuple[int, bytes]] = []
        self._work: dict[int, bytes] = {}
        self._losses: dict[int, int] = {}

    @property
    def memory_gb(self) -> float:
        return free_host_bytes() / 2**30 / self.at_once

    def start(self, number: int, title: str, work: Callable[[], Any]) -> None:
        self._work[number] = pickle.dumps(work)
        self._waiting.append((number, self._work[number]))
        self._distribute()

    def wait(self, seconds: float) -> list[tuple[int, Outcome]]:
        ready = wait([worker.cells for worker in self._workers.values()], seconds)
        ended = [
            each
            for place, worker in [*self._workers.items()]
            if worker.cells in ready
            for each in self._handle(place, worker)
        ]
        self._distribute()
        return ended

    def close(self) -> None:
        for worker in self._workers.values():
            worker.end()
        end = time.monotonic() + _ENDING_SECONDS
        for worker in self._workers.values():
            worker.join(end - time.monotonic())

    def _distribute(self) -> None:
        """Give the cells that wait to workers that are idle."""
        for place in range(self.at_once):
            if not self._waiting:
                return
            worker = self._workers.get(place)
            if worker is None:
                worker = self._workers[place] = _Worker(self._environments[place])
            if worker.cell is None:
                worker.start(*self._waiting.pop(0))

    def _handle(self, place: int, worker: _Worker) -> list[tuple[int, Outcome]]:
        cell, worker.cell = worker.cell, None
        if (outcome := worker.outcome()) is not None:
            assert cell is not None
            del self._work[cell]
            return [(cell, outcome)]
        del self._workers[place]
        worker.join(_ENDING_SECONDS)
        status = worker.process.returncode
        why = signal.Signals(-status).name if status < 0 else f"exit status {status}"
        if cell is None:
            return []
        self._losses[cell] = times = self._losses.get(cell, 0) + 1
        if times > self._retries:
            del self._work[cell]
            return [(cell, Outcome(error=lost(why, times)))]
        console.print(f"note: a worker was lost ({why}); its cell is run again", markup=False)
        self._waiting.insert(0, (cell, self._work[cell]))
        return []


def executor_of(
    name: ExecutorName, jobs: int | None, address: str | None, resources: Resources, reports: Path
) -> Executor | None:
    """The executor called ``name``; None: this process is enough.

    Raises:
        PipelineError: the options do not fit each other, or the executor's extra is not installed.
    """
    if address is not None and name != "ray":
        raise PipelineError(f"--address {address}: only --executor ray connects to a cluster")
    if jobs is not None and jobs < 1:
        raise PipelineError(f"--jobs {jobs}: give at least 1")
    if name == "local":
        return None if jobs in (None, 1) else partial(processes, jobs, resources.retries)
    module, extra = {"ray": ("ray", "ray"), "slurm": ("submitit", "slurm")}[name]
    try:
        if name == "ray":
            # Read when it is imported: every line of a cell is wanted, in colour only on a terminal; no reports home.
            quiet = {"RAY_DEDUP_LOGS": "0", "RAY_USAGE_STATS_ENABLED": "0"}
            colour = {} if sys.stderr.isatty() else {"RAY_COLOR_PREFIX": "0"}
            os.environ.update({key: value for key, value in (quiet | colour).items() if key not in os.environ})
            from stages.compare.executors.on_ray import ray_cluster

            return partial(ray_cluster, resources, address, jobs)
        from stages.compare.executors.on_slurm import slurm_jobs, slurm_parameters

        slurm_parameters(resources)  # refuses what cannot be before anything is read
        return partial(slurm_jobs, resources, reports, jobs)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        install = f"pip install 'adapter-fusion-pipeline[{extra}]'"
        raise PipelineError(f"--executor {name}: {module} is not installed: {install}") from None
