"""A queue, and a thread that runs the models. Requests that arrive together share forward passes."""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from queue import Full
from typing import Any

Work = Callable[[Sequence[Any]], Sequence[Any]]
"""Computes one result per row; a result may be an exception."""


class Closed(Exception):
    """The queue takes no more rows: the server is stopping."""


@dataclass(eq=False)
class _Job:
    """The rows of one request."""

    work: Work
    rows: Sequence[Any]
    cost: int  # its rows, counted once per forward pass
    future: Future[list[Any]] = field(default_factory=Future)
    arrived: float = field(default_factory=time.monotonic)


class Batcher:
    """Answers rows in one thread, the only one that touches the models.

    The oldest request decides what is computed next. It waits until ``max_wait`` seconds after its arrival for later
    requests for the same work, which join it in order, up to ``max_rows`` rows in all. Requests are never split.

    Args:
        max_rows: rows that are computed together; a larger request is computed alone.
        max_wait: seconds.
        max_queue: rows that may wait; a row counts once per forward pass.
        observe: called after each batch with its number of rows and the seconds that it took.
    """

    def __init__(
        self, *, max_rows: int, max_wait: float, max_queue: int, observe: Callable[[int, float], None] = lambda *_: None
    ) -> None:
        self._max_rows, self._max_wait, self._max_queue, self._observe = max_rows, max_wait, max_queue, observe
        self._jobs: deque[_Job] = deque()
        self.waiting = 0
        """Rows that no batch has taken yet, counted once per forward pass."""
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="models", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether what is submitted will be answered."""
        return self._thread.is_alive() and not self._closed

    def submit(self, work: Work, rows: Sequence[Any], passes: int = 1) -> Future[list[Any]]:
        """Queue ``rows``; the future holds the results of ``work`` in order. Requests with equal ``work`` share calls.

        Args:
            passes: forward passes per row.

        Raises:
            queue.Full: the queue has no room for the rows.
            Closed: :meth:`close` was called.
        """
        job = _Job(work, rows, len(rows) * passes)
        with self._changed:
            if self._closed:
                raise Closed
            if self.waiting + job.cost > self._max_queue:
                raise Full
            self._jobs.append(job)
            self.waiting += job.cost
            self._changed.notify()
        return job.future

    def close(self) -> None:
        """Accept no more rows, and wait until the queued ones are answered."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while jobs := self._next():
            _answer(jobs, self._observe)

    def _next(self) -> list[_Job]:
        """The requests of the next batch; empty when the queue is closed and empty."""
        with self._changed:
            self._changed.wait_for(lambda: self._jobs or self._closed)
            if not self._jobs:
                return []
            oldest = self._jobs[0]
            self._changed.wait_for(
                lambda: self._closed or sum(len(job.rows) for job in self._alike(oldest)) >= self._max_rows,
                oldest.arrived + self._max_wait - time.monotonic(),
            )
            jobs, rows = [oldest], len(oldest.rows)
            for job in self._alike(oldest)[1:]:
                if (rows := rows + len(job.rows)) > self._max_rows:
                    break
                jobs.append(job)
            taken = set(jobs)
            self._jobs = deque(job for job in self._jobs if job not in taken)
            self.waiting -= sum(job.cost for job in jobs)
            return jobs

    def _alike(self, oldest: _Job) -> list[_Job]:
        return [job for job in self._jobs if job.work == oldest.work]


def _answer(jobs: Sequence[_Job], observe: Callable[[int, float], None]) -> None:
    """Compute the requests together; if that fails, one by one, so that only a faulty request gets no answer."""
    jobs = [job for job in jobs if job.future.running() or job.future.set_running_or_notify_cancel()]
    if not jobs:
        return
    rows = [row for job in jobs for row in job.rows]
    started = time.perf_counter()
    try:
        results = list(jobs[0].work(rows))
        if len(results) != len(rows):
            raise RuntimeError(f"{len(results)} results for {len(rows)} rows")
    except Exception as error:
        if len(jobs) == 1:
            jobs[0].future.set_exception(error)
            return
        for job in jobs:
            _answer([job], observe)
        return
    observe(len(rows), time.perf_counter() - started)
    for job in jobs:
        own, results = results[: len(job.rows)], results[len(job.rows) :]
        job.future.set_result(own)
