"""Cells as tasks of Ray Core (Moritz et al. 2018), one cell a task, on this machine or on a cluster.

Ray starts a task again elsewhere when its worker or node is lost; the cell then resumes from its checkpoint. This
requires shared storage: every node must see the same reports, store, data and backbone under the same paths.
"""

import logging
import os
import pickle
import platform
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from pipeline.settings.study import Resources
from pipeline.system.errors import PipelineError
from pipeline.system.process import cores
from pipeline.training.devices import free_host_bytes
from stages.compare.executors.pool import Outcome, Pool, broken, carried_out_here, lost

_GIB = 2**30
_ENDING_SECONDS = 30.0
"""How long interrupted cells may take to write a checkpoint."""


@contextmanager
def ray_cluster(resources: Resources, address: str | None = None, jobs: int | None = None) -> Iterator[Pool]:
    """A pool of the nodes of a Ray cluster.

    Args:
        address: the cluster's, such as ``10.0.0.1:6379`` or ``auto``; None: that of ``RAY_ADDRESS``, or a cluster on
            this machine only, which ends with the pool.
        jobs: maximum number of cells at once; None: as many as there is room for.

    Raises:
        PipelineError: no cluster answers at the address.
    """
    address = address or os.environ.get("RAY_ADDRESS")
    host, _, port = (address or "").rpartition(":")
    if host and port.isdigit() and "//" not in host:
        try:  # Ray itself tries for minutes
            socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
        except (OSError, OverflowError) as error:
            raise _no_cluster(f"{host}:{port}", str(error)) from None
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    options: dict[str, Any] = {"num_cpus": cores(), "include_dashboard": False} if address is None else {}
    try:
        ray.init(address=address, logging_level=logging.WARNING, **options)
    except (ConnectionError, ValueError, RuntimeError, RayError) as error:
        raise _no_cluster(address or "this machine", str(error).partition("\n")[0]) from error
    finally:
        for number, handler in handlers.items():  # Ray handles SIGTERM itself, and would end silently
            signal.signal(number, handler)
    pool = _Ray(resources, jobs, is_here=address is None)
    try:
        yield pool
    finally:
        pool.close()
        ray.shutdown()


def _no_cluster(address: str, why: str) -> PipelineError:
    return PipelineError(f"no Ray cluster at {address} ({why}): start one with ray start --head")


class _Ray:
    def __init__(self, resources: Resources, jobs: int | None, is_here: bool) -> None:
        """Args: is_here: whether the cluster is this machine only."""
        self._resources, self._jobs, self._is_here = resources, jobs, is_here
        memory = {} if resources.memory_gb is None else {"memory": int(resources.memory_gb * _GIB)}
        self._needs = {"CPU": float(resources.cpus), "GPU": resources.gpus, **memory}
        self._task = ray.remote(
            num_cpus=resources.cpus, num_gpus=resources.gpus, max_retries=resources.retries, **memory
        )(_carried_out)
        self._running: dict[Any, int] = {}
        self._directory = str(Path.cwd())

    @property
    def places(self) -> str:
        rooms = self._rooms()
        return f"nodes: {len(rooms)}, with room for {sum(rooms)} at once"

    @property
    def at_once(self) -> int:
        # At least one: a waiting cell makes an autoscaling cluster grow.
        room = max(1, sum(self._rooms()))
        return room if self._jobs is None else min(room, self._jobs)

    @property
    def memory_gb(self) -> float | None:
        given = self._resources.memory_gb
        if not self._is_here:
            return given
        share = free_host_bytes() / 2**30 / self.at_once
        return share if given is None else min(given, share)

    def _rooms(self) -> list[int]:
        """How many cells fit on each node."""
        needs = {name: need for name, need in self._needs.items() if need}
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        return [min(int(has.get(name, 0.0) / need + 1e-9) for name, need in needs.items()) for has in nodes]

    def start(self, number: int, title: str, work: Callable[[], Any]) -> None:
        resources = self._resources
        task = self._task.options(name=title)
        self._running[task.remote(pickle.dumps(work), resources.cpus, resources.processes, self._directory)] = number

    def wait(self, seconds: float) -> list[tuple[int, Outcome]]:
        if not self._running:
            time.sleep(seconds)
            return []
        ended, _ = ray.wait(list(self._running), num_returns=1, timeout=seconds)
        return [(self._running.pop(reference), self._outcome(reference)) for reference in ended]

    def _outcome(self, reference: Any) -> Outcome:
        try:
            outcome: Outcome = ray.get(reference)
            return outcome
        except RayTaskError as error:  # an error on the node, which Ray does not retry
            return Outcome(error=broken(str(error)))
        except RayError as error:
            why = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            return Outcome(error=lost(why, 1 + self._resources.retries))

    def close(self) -> None:
        """Interrupt the running cells, and wait until they have saved their state."""
        running = list(self._running)
        for reference in running:
            with suppress(RayError, ValueError):
                ray.cancel(reference)
        if running:
            with suppress(RayError):
                ray.wait(running, num_returns=len(running), timeout=_ENDING_SECONDS)


def _carried_out(work: bytes, threads: int, processes: int, directory: str) -> Outcome:
    """A Ray task: run the cell in the driver's working directory, since its paths may be relative to that."""
    place = f"node {platform.node()} {ray.get_runtime_context().get_node_id()[:6]}"
    try:
        os.chdir(directory)
    except OSError:
        missing = f"{place} has no folder {directory}: all nodes must see the same folders under the same paths"
        return Outcome(error=PipelineError(missing), place=place)
    return carried_out_here(work, threads, processes)._replace(place=place)
