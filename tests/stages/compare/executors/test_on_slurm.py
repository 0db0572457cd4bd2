"""Slurm's pool on submitit's local executor: outcomes, requeue, what is left over; and what Slurm is asked for."""

import math
import os
import pickle
import re
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("submitit", reason="submitit is not installed")

from submitit.core.utils import FailedJobError

from pipeline.settings.study import Resources
from pipeline.system.errors import PipelineError
from stages.compare.executors.on_slurm import slurm_jobs, slurm_parameters
from stages.compare.executors.pool import Outcome
from tests.stages.compare.executors.cells import Unfit, once_preempted, refuse


@pytest.mark.long
@pytest.mark.slow
def test_an_error_of_the_node_is_told_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("stages.compare.executors.on_slurm._Requeued", Unfit)
    with slurm_jobs(Resources(), tmp_path, cluster="local") as pool:
        pool.start(0, "cell", int)
        while not (ended := pool.wait(10)):
            pass
    ((_, outcome),) = ended
    reason = "ModuleNotFoundError: no such module on this node"
    assert str(outcome.error) == f"its worker failed: {reason} (the trace is on standard error)"
    assert "Traceback (most recent call last)" in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.slow
def test_cells_are_jobs_and_one_that_is_preempted_is_queued_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    works = [partial(math.sqrt, 4), refuse, partial(once_preempted, tmp_path / "mark"), partial(os._exit, 3)]
    found: dict[int, Outcome] = {}
    with slurm_jobs(Resources(retries=1), tmp_path, jobs=4, cluster="local") as pool:
        for number, work in enumerate(works):
            pool.start(number, f"cell {number}", work)
        while len(found) < len(works):
            found |= dict(pool.wait(10))
    assert (found[0].value, found[2].value) == (2, "done")
    assert str(found[1].error) == "fix this"
    assert re.match(r"its worker was lost \(job \d+ of Slurm, state [A-Z]+\)\. If memory ran out", str(found[3].error))
    assert "has not produced any output" in capsys.readouterr().err
    assert found[0].place.startswith("node ")
    assert [path.name for path in tmp_path.iterdir()] == ["mark"]


def test_what_slurm_is_asked_for() -> None:
    resources = Resources(cpus=4, gpus=2, memory_gb=16, minutes=90, partition="short")
    asked = slurm_parameters(resources, jobs=3)
    wanted = {"timeout_min": 90, "cpus_per_task": 4, "gpus_per_node": 2, "mem_gb": 16, "slurm_partition": "short"}
    assert wanted.items() <= asked.items()
    assert asked["slurm_array_parallelism"] == 3
    assert asked["slurm_additional_parameters"] == {"requeue": True}
    assert {"gpus_per_node", "mem_gb", "slurm_partition"}.isdisjoint(slurm_parameters(Resources()))


@pytest.mark.parametrize(
    ("cluster", "jobs", "at_once"),
    [("slurm", 3, 3), ("slurm", None, 1000), ("slurm", 5000, 1000), ("local", 3, 3), ("local", None, 1)],
)
def test_no_more_cells_are_out_at_once_than_jobs(
    cluster: str, jobs: int | None, at_once: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cells that become ready one after the other are arrays of their own, each with its own bound."""
    for program in ("sbatch", "srun"):
        (tmp_path / program).touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with slurm_jobs(Resources(), tmp_path, jobs, cluster) as pool:
        assert pool.at_once == at_once


def test_what_sbatch_refuses_is_one_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for program in ("sbatch", "srun"):
        (tmp_path / program).touch(mode=0o755)
    refusal = "sbatch: error: invalid partition specified: none\nsbatch: error: Batch job submission failed"
    (tmp_path / "sbatch").write_text(f'#!/bin/sh\necho "{refusal}" >&2\nexit 1\n')
    monkeypatch.setenv("PATH", str(tmp_path))
    told = "^--executor slurm: sbatch refused: invalid partition specified: none; Batch job submission failed: change"
    with slurm_jobs(Resources(partition="none"), tmp_path / "reports") as pool:
        for cells in (1, 2):  # the second is an array
            pool.start(cells, "cell", partial(math.sqrt, 4))
            with pytest.raises(PipelineError, match=told):
                pool.wait(1)
    assert capsys.readouterr() == ("", "")


class FakeJob:
    """A job that has ended once it is let go."""

    def __init__(self, ended: set[int], number: int) -> None:
        self.ended, self.number, self.cancelled = ended, number, False

    def done(self) -> bool:
        return self.number in self.ended

    def result(self) -> Outcome:
        return Outcome(value=self.number)

    def cancel(self) -> None:
        self.cancelled = True


def test_what_sbatch_refuses_while_jobs_run_is_submitted_again_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    submitted: list[int] = []
    ended: set[int] = set()
    is_full = False

    def map_array(_function: object, works: tuple[bytes, ...], *_: object) -> list[FakeJob]:
        submitted.append(len(works))
        if is_full:
            raise FailedJobError("sbatch: error: QOSMaxSubmitJobPerUserLimit")
        return [FakeJob(ended, pickle.loads(work)) for work in works]

    with slurm_jobs(Resources(), tmp_path, jobs=4, cluster="local") as pool:
        monkeypatch.setattr(pool._executor, "map_array", map_array)
        for number in (0, 1):
            pool.start(number, "cell", number)
        assert pool.wait(0) == []
        is_full = True
        pool.start(2, "cell", 2)
        assert (pool.wait(0), pool.wait(0), submitted) == ([], [], [2, 1])  # not at every look
        assert "QOSMaxSubmitJobPerUserLimit: what is ready is submitted again" in capsys.readouterr().err
        monkeypatch.setattr("stages.compare.executors.on_slurm._RETRY_SECONDS", 0.0)
        ended.add(0)
        assert [number for number, _ in pool.wait(0)] == [0]
        assert (pool.wait(0), pool.wait(0), submitted) == ([], [], [2, 1, 1, 1])
        is_full = False
        ended |= {1, 2}
        assert sorted(number for number, _ in [*pool.wait(0), *pool.wait(0)]) == [1, 2]


def test_slurm_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PipelineError, match="no sbatch on this machine"), slurm_jobs(Resources(), tmp_path):
        pass
