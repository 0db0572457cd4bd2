"""Cells in several processes of this machine, which share its cores and GPUs."""

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

import torch

from pipeline.system.errors import PipelineError
from pipeline.system.process import cores
from pipeline.training.devices import on_gpu
from pipeline.training.memory import host_gb_for_each
from pipeline.training.progress import console
from stages.compare.executors.frames import receive, send
from stages.compare.executors.pool import Outcome, Pool, lost

_ENDING_SECONDS = 60.0
"""How long workers may take to end once the pool is closed. A second Ctrl-C ends the wait."""

_THREADS = ("OMP_NUM_THREADS", "RAYON_NUM_THREADS")
"""Where torch, and the tokenizers, read how many threads to use."""


@contextmanager
def processes(jobs: int, retries: int = 3) -> Iterator[Pool]:
    """A pool of ``jobs`` processes. Each has its share of the cores in threads, unless the environment says how many.

    Of several GPUs each process gets one in turn.

    Args:
        retries: how often a cell is carried out again whose process was killed.
    """
    pool = _Processes(jobs, retries, torch.cuda.device_count() if on_gpu() else 0)
    try:
        yield pool
    finally:
        pool.close()


class _Worker:
    """A process, and the threads that read from it: outcomes into a queue, lines onto our standard error."""

    def __init__(self, place: int, environment: Mapping[str, str], events: "queue.SimpleQueue[_Event]") -> None:
        self.cell: int | None = None
        # A session of its own: of Ctrl-C in a terminal it learns from us, once.
        self.process = subprocess.Popen(
            [sys.executable, "-m", "stages.compare.executors.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
        self._events, self._place = events, place
        self._threads = [threading.Thread(target=read, daemon=True) for read in (self._outcomes, self._lines)]
        for thread in self._threads:
            thread.start()

    def start(self, cell: int, work: bytes) -> None:
        assert self.process.stdin is not None
        self.cell = cell
        with suppress(BrokenPipeError):  # it was killed while it was idle; its end is an event of its own
            send(self.process.stdin.fileno(), work)

    def close(self) -> None:
        """Ask it to end; see :mod:`stages.compare.executors.worker`."""
        assert self.process.stdin is not None
        with suppress(OSError):
            self.process.stdin.close()

    def join(self, seconds: float) -> None:
        try:
            self.process.wait(max(0.0, seconds))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for thread in self._threads:
            thread.join(1.0)
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()

    def _outcomes(self) -> None:
        assert self.process.stdout is not None
        try:
            while True:
                self._events.put((self._place, self, receive(self.process.stdout.fileno())))
        except (EOFError, OSError, ValueError):
            self._events.put((self._place, self, None))

    def _lines(self) -> None:
        assert self.process.stderr is not None
        with suppress(OSError, ValueError):
            for line in self.process.stderr:
                text = line.decode(errors="backslashreplace").rstrip("\n")
                console.print(text, markup=False)


_Event = tuple[int, _Worker, Outcome | None]
"""A worker's place, the worker, and the outcome of its cell; None: the process has ended."""


class _Processes:
    def __init__(self, jobs: int, retries: int, gpus: int) -> None:
        self.at_once, self.places, self._retries = jobs, "", retries
        threads = str(max(1, cores() // jobs))
        self._environments = [{**dict.fromkeys(_THREADS, threads), **os.environ} for _ in range(jobs)]
        if gpus > 1:
            names = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(gpus)))).split(",")
            for place, environment in enumerate(self._environments):
                environment["CUDA_VISIBLE_DEVICES"] = names[place % len(names)]
        self._events: queue.SimpleQueue[_Event] = queue.SimpleQueue()
        self._workers: dict[int, _Worker] = {}
        self._waiting: list[tuple[int, bytes]] = []
        self._work: dict[int, bytes] = {}
        self._losses: dict[int, int] = {}

    @property
    def memory_gb(self) -> float:
        return host_gb_for_each(self.at_once)

    def start(self, number: int, title: str, work: bytes) -> None:
        self._work[number] = work
        self._waiting.append((number, work))
        self._distribute()

    def wait(self, seconds: float) -> list[tuple[int, Outcome]]:
        ended: list[tuple[int, Outcome]] = []
        with suppress(queue.Empty):
            ended += self._handle(*self._events.get(timeout=seconds))
            while True:
                ended += self._handle(*self._events.get_nowait())
        self._distribute()
        return ended

    def close(self) -> None:
        for worker in self._workers.values():
            worker.close()
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
                worker = self._workers[place] = _Worker(place, self._environments[place], self._events)
            if worker.cell is None:
                worker.start(*self._waiting.pop(0))

    def _handle(self, place: int, worker: _Worker, outcome: Outcome | None) -> list[tuple[int, Outcome]]:
        cell, worker.cell = worker.cell, None
        if outcome is not None:
            assert cell is not None
            del self._work[cell]
            return [(cell, outcome)]
        del self._workers[place]
        worker.close()
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


def check_jobs(jobs: int) -> None:
    """Raise a :class:`PipelineError` for a number of processes that makes no sense."""
    if jobs < 1:
        raise PipelineError(f"--jobs {jobs}: give at least 1")
