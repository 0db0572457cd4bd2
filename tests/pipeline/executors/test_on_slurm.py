"""Slurm's pool on submitit's local executor: outcomes, requeue, what is left over; and what Slurm is asked for."""

import math
import os
import pickle
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("submitit", reason="submitit is not installed")

from pipeline.executors.on_slurm import slurm_jobs, slurm_parameters
from pipeline.executors.pool import Outcome
from pipeline.settings.resources import Resources
from pipeline.system.errors import PipelineError
from tests.pipeline.executors.cells import once_preempted, refuse


@pytest.mark.slow
def test_cells_are_jobs_and_one_that_is_preempted_is_queued_again(tmp_path: Path) -> None:
    works = [partial(math.sqrt, 4), refuse, partial(once_preempted, tmp_path / "mark"), partial(os._exit, 3)]
    found: dict[int, Outcome] = {}
    with slurm_jobs(Resources(retries=1), tmp_path, jobs=4, cluster="local") as pool:
        for number, work in enumerate(works):
            pool.start(number, f"cell {number}", pickle.dumps(work))
        while len(found) < len(works):
            found |= dict(pool.wait(10))
    assert (found[0].value, found[2].value) == (2, "done")
    assert str(found[1].error) == "mend this"
    assert "its worker was lost" in str(found[3].error)
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


def test_slurm_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PipelineError, match="no sbatch on this machine"), slurm_jobs(Resources(), tmp_path):
        pass
