"""Cells as Slurm jobs, submitted through submitit: cells that are ready at the same time form one array.

A job that is preempted or reaches its time limit is requeued, and its cell resumes from its checkpoint.
"""

import io
import pickle
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any

import submitit
from submitit.core.utils import FailedJobError, UncompletedJobError

from pipeline.settings.study import Resources
from pipeline.system.atomic import make_folder
from pipeline.system.errors import PipelineError
from pipeline.training.progress import console
from stages.compare.executors.pool import Outcome, Pool, broken, carried_out_here, lost

_MOST_AT_ONCE = 1000
"""Cells of an array: Slurm's default limit (MaxArraySize)."""
_RETRY_SECONDS = 60.0
"""Wait before submitting again after a refusal, unless a job ends earlier: there may be a limit on jobs."""
_RULE = "-" * 22
"""Above and below the trace in submitit's message."""


@contextmanager
def slurm_jobs(resources: Resources, reports: Path, jobs: int | None = None, cluster: str = "slurm") -> Iterator[Pool]:
    """A pool of Slurm jobs.

    Args:
        reports: a folder on storage that all nodes share; it holds the descriptions of jobs while they exist.
        jobs: maximum number of cells at once; None: as many as Slurm allows.
        cluster: submitit's name of the scheduler; ``local`` runs the jobs on this machine.

    Raises:
        PipelineError: Slurm is not on this machine.
    """
    if cluster == "slurm" and shutil.which("sbatch") is None:
        raise PipelineError("--executor slurm: no sbatch on this machine: run it where jobs are submitted")
    folder = Path(tempfile.mkdtemp(prefix=".slurm-", dir=make_folder(reports)))
    pool = _Slurm(resources, folder, jobs, cluster)
    try:
        yield pool
    finally:
        pool.close()
        shutil.rmtree(folder, ignore_errors=True)


def slurm_parameters(resources: Resources, jobs: int | None = None) -> dict[str, Any]:
    """The resources of a job, as submitit names them."""
    if 0 < resources.gpus < 1:
        raise PipelineError(f"[resources] gpus = {resources.gpus}: Slurm gives whole GPUs: write 1")
    parameters: dict[str, Any] = {
        "name": "cells",
        "timeout_min": resources.minutes,
        "nodes": 1,
        "tasks_per_node": 1,
        "cpus_per_task": resources.cpus,
        "slurm_array_parallelism": min(jobs or _MOST_AT_ONCE, _MOST_AT_ONCE),
        "slurm_additional_parameters": {"requeue": True},
    }
    asked = {
        "gpus_per_node": int(resources.gpus) or None,
        "mem_gb": resources.memory_gb,
        "slurm_partition": resources.partition,
    }
    return parameters | {name: value for name, value in asked.items() if value is not None}


class _Requeued:
    """The function of a job. Its ``checkpoint`` tells submitit that an interrupted job can simply be run again."""

    def __call__(self, work: bytes, threads: int, processes: int) -> Outcome:
        outcome = carried_out_here(work, threads, processes)
        return outcome._replace(place=f"node {submitit.JobEnvironment().hostname}")

    def checkpoint(self, *arguments: Any) -> "submitit.helpers.DelayedSubmission":
        return submitit.helpers.DelayedSubmission(self, *arguments)


class _Slurm:
    def __init__(self, resources: Resources, folder: Path, jobs: int | None, cluster: str) -> None:
        self.places, self.memory_gb, self._resources = "", resources.memory_gb, resources
        # The limit of an array holds for its own cells only, and cells that become ready later form another array.
        most = jobs or (1 if cluster == "local" else _MOST_AT_ONCE)  # Slurm queues jobs itself
        self.at_once = min(most, _MOST_AT_ONCE)
        self._executor = submitit.AutoExecutor(folder, cluster=cluster, slurm_max_num_timeout=resources.retries)
        self._executor.update_parameters(**slurm_parameters(resources, jobs))
        self._ready: list[tuple[int, bytes]] = []
        self._running: dict[int, submitit.Job[Outcome]] = {}
        self._retry_at = 0.0

    def start(self, number: int, title: str, work: Callable[[], Any]) -> None:
        self._ready.append((number, pickle.dumps(work)))

    def wait(self, seconds: float) -> list[tuple[int, Outcome]]:
        if self._ready and time.monotonic() >= self._retry_at:
            self._submit()
        end = time.monotonic() + seconds
        while not (ended := [number for number, job in self._running.items() if job.done()]):
            if time.monotonic() > end:
                return []
            time.sleep(min(seconds, 0.2))
        self._retry_at = 0.0
        return [(number, self._outcome(self._running.pop(number))) for number in ended]

    def _submit(self) -> None:
        """Submit the cells that are ready as one array. If Slurm refuses them while others run, they stay ready.

        Raises:
            PipelineError: Slurm refuses, and none runs.
        """
        numbers, works = zip(*self._ready, strict=True)
        threads, processes = self._resources.cpus, self._resources.processes
        try:
            with redirect_stderr(io.StringIO()):  # submitit prints there what the error says, too
                jobs = self._executor.map_array(_Requeued(), works, [threads] * len(works), [processes] * len(works))
        except FailedJobError as error:
            reason = "; ".join(line.removeprefix("sbatch: error: ") for line in str(error).strip().splitlines())
            if not self._running:
                remedy = "change [resources] of the study, or submit fewer cells at once (--jobs)"
                raise PipelineError(f"--executor slurm: sbatch refused: {reason}: {remedy}") from error
            console.print(f"note: sbatch refused: {reason}: what is ready is submitted again later", markup=False)
            self._retry_at = time.monotonic() + _RETRY_SECONDS
            return
        self._running |= dict(zip(numbers, jobs, strict=True))
        self._ready = []

    def _outcome(self, job: "submitit.Job[Outcome]") -> Outcome:
        try:
            outcome: Outcome = job.result()
            return outcome
        except FailedJobError as error:
            _, _, trace = str(error).partition(f"{_RULE}\n")
            return Outcome(error=broken(trace.partition(_RULE)[0] or str(error)))
        except UncompletedJobError as error:
            print(error, file=sys.stderr)
            return Outcome(error=lost(f"job {job.job_id} of Slurm, state {job.state}"))

    def close(self) -> None:
        for job in self._running.values():
            job.cancel()
