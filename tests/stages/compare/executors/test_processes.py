"""The pool of processes, with cells that need no model: what ends how, what is tried again, what is shared."""

import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from pipeline.system.errors import MachineError, PipelineError
from pipeline.system.process import cores
from stages.compare.executors.pool import Outcome, Pool
from stages.compare.executors.processes import _Processes, processes
from tests.stages.compare.executors.cells import full_disk, once_killed, printing, refuse


def outcomes(pool: Pool, *works: Callable[[], Any]) -> list[Outcome]:
    """How cells ended that were started together."""
    for number, work in enumerate(works):
        pool.start(number, f"cell {number}", work)
    found: dict[int, Outcome] = {}
    while len(found) < len(works):
        found |= dict(pool.wait(30))
    return [found[number] for number in range(len(works))]


def test_cells_end_with_values_or_errors_and_none_stops_another() -> None:
    with processes(2) as pool:
        values = outcomes(pool, *(partial(math.sqrt, number) for number in range(5)))
        assert [outcome.value for outcome in values] == [math.sqrt(number) for number in range(5)]
        refused, disk, bug, printed, last = outcomes(
            pool, refuse, full_disk, partial(math.sqrt, -1), printing, partial(math.sqrt, 9)
        )
    assert (type(refused.error), str(refused.error)) == (PipelineError, "fix this")
    assert isinstance(disk.error, MachineError)
    assert "reports/run.json: the disk is full" in str(disk.error)
    assert "a bug: ValueError" in str(bug.error)
    assert (printed.error, last.value) == (None, 3)


def test_a_cell_whose_worker_is_killed_is_carried_out_again(tmp_path: Path) -> None:
    with processes(1, retries=1) as pool:
        again, after = outcomes(pool, partial(once_killed, tmp_path / "mark"), partial(math.sqrt, 4))
    assert (again.value, after.value) == ("done", 2)


def test_a_cell_that_always_loses_its_worker_is_given_up() -> None:
    with processes(2, retries=1) as pool:
        lost, other = outcomes(pool, partial(os._exit, 3), partial(math.sqrt, 4))
    assert "its worker was lost 2 times (exit status 3)" in str(lost.error)
    assert other.value == 2


@pytest.mark.parametrize("given", [None, "3"])
def test_workers_share_the_cores(given: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if given is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", given)
    with processes(2) as pool:
        (outcome,) = outcomes(pool, partial(os.getenv, "OMP_NUM_THREADS"))
    assert outcome.value == (given or str(max(1, cores() // 2)))


@pytest.mark.parametrize(
    ("visible", "gpus", "expected"),
    [
        (None, 2, ["0", "1", "0"]),
        ("4,6", 2, ["4", "6", "4"]),  # those that the user leaves visible, by their own names
        ("GPU-a,GPU-b,GPU-c", 3, ["GPU-a", "GPU-b", "GPU-c"]),
        ("5", 1, ["5", "5", "5"]),
        (None, 1, [None, None, None]),
        (None, 0, [None, None, None]),
    ],
)
def test_each_worker_sees_one_gpu_of_several(
    visible: str | None, gpus: int, expected: list[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    pool = _Processes(3, 0, gpus)
    assert [environment.get("CUDA_VISIBLE_DEVICES") for environment in pool._environments] == expected


def test_a_cell_that_runs_when_the_pool_is_closed_is_interrupted() -> None:
    started = time.monotonic()
    with processes(1) as pool:
        pool.start(0, "long", partial(time.sleep, 300))
        pool.wait(0.5)
        (worker,) = workers(os.getpid())
        time.sleep(1)
    assert not worker.is_running()
    assert time.monotonic() - started < 60


def test_workers_end_with_a_main_process_that_is_killed() -> None:
    code = (
        "import pickle, time\nfrom functools import partial\nfrom stages.compare.executors.processes import processes\n"
        "with processes(1) as pool:\n"
        "    pool.start(0, 'long', partial(time.sleep, 300))\n"
        "    print('started', flush=True)\n"
        "    pool.wait(300)\n"
    )
    main = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    with main:
        assert main.stdout.readline() == b"started\n"
        (worker,) = workers(main.pid)
        time.sleep(1)
        main.kill()
    psutil.wait_procs([worker], timeout=60)
    assert not worker.is_running()


def workers(pid: int) -> list[psutil.Process]:
    """The workers of a main process."""
    children = psutil.Process(pid).children()
    return [child for child in children if "stages.compare.executors.pool" in child.cmdline()]
