"""compare with Slurm's pool, on submitit's local executor."""

from pathlib import Path

import pytest

from pipeline.runs.workspace import Workspace
from pipeline.settings.parse_study import parse_study
from pipeline.settings.study import Resources
from stages.compare.compare import compare

pytest.importorskip("submitit", reason="submitit is not installed")

from stages.compare.executors.on_slurm import slurm_jobs


@pytest.mark.slow
@pytest.mark.long
def test_jobs_train_a_study_with_what_it_builds_on(workspace: Workspace, tmp_path: Path) -> None:
    values = {
        "name": "small", "methods": ["adapter", "fusion"], "targets": ["films"], "sources": ["meals"], "seeds": [0],
        "limit": 64, "recipe": {"epochs": 1, "batch_size": 16, "bottleneck": 8},
    }  # fmt: skip
    study = parse_study(values, "test")
    reports = workspace.reports
    result, folder = compare(
        study, workspace, executor=lambda: slurm_jobs(Resources(), reports, jobs=2, cluster="local")
    )
    assert [entry.error for entry in result.entries] == [None] * 2
    assert (folder / "index.html").is_file()
    assert {path.name for path in reports.iterdir()} == {"runs", "small", "index.html"} | {
        path.name for path in reports.glob(".overview.lock")
    }
    # Here the same runs are found, so their names are the same.
    assert compare(study, workspace)[0] == result
