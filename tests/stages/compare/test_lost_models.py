"""Models that are deleted after a study: what is trained again for what is new, and what stands on its records."""

import shutil
from typing import Any

import pytest

from pipeline.executors.processes import processes
from pipeline.records.studies import StudyResult
from pipeline.runs.workspace import Workspace
from stages.compare.compare import compare
from tests.stages.compare.small import QUICK, again, study

VALUES: dict[str, Any] = {
    "targets": ["films", "meals"],
    "limit": 32,
    "recipe": QUICK | {"epochs": 1},
    "scoring": "half",
    "rows": {
        "standard": {"method": "fusion", "of": "adapter", "recipe": {"fusion": "standard"}},
        "joined": {"method": "ensemble", "of": ["adapter", "fusion"]},
    },
}


def runs(result: StudyResult) -> dict[tuple[str, str], str | None]:
    return {(entry.method, entry.target): entry.run for entry in result.entries}


def lose_adapters(workspace: Workspace) -> None:
    """Delete the store, and let none of the adapters of films be saved again."""
    shutil.rmtree(workspace.store_root)
    (workspace.store_root / "adapters").mkdir(parents=True)
    (workspace.store_root / "adapters" / "films").touch()


TUNED = {"adapter": {"epochs": [1, 2, 3]}}


@pytest.mark.parametrize(
    ("tuned", "at_once"),
    [({}, 1), (TUNED, 1), pytest.param(TUNED, 2, marks=pytest.mark.slow)],
    ids=["one recipe", "tuned", "tuned, in processes"],
)
def test_a_lost_model_that_cannot_be_made_again_fails_only_what_builds_on_it(
    tuned: dict[str, Any], at_once: int, workspace: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    values, methods = VALUES | {"tune": tuned}, ["adapter", "fusion"]
    first, _ = compare(study(**values, methods=methods), workspace)
    lose_adapters(workspace)
    more = study(**values, methods=[*methods, "joined", "standard"])
    executor = (lambda: processes(at_once)) if at_once > 1 else None
    found, folder = compare(more, again(workspace), executor=executor)
    assert runs(first).items() <= runs(found).items()
    failed = [entry for entry in found.entries if entry.error]
    assert [(entry.method, entry.target) for entry in failed] == [("standard", "films"), ("standard", "meals")]
    assert all("store/adapters/films" in str(entry.error) for entry in failed)
    assert "films seed 0: failed: cannot write" in capsys.readouterr().err
    assert (folder / "tables.md").is_file()


def test_scores_stand_though_a_model_that_is_wanted_cannot_be_made_again(
    workspace: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    small = study(**VALUES, methods=["adapter", "fusion"])
    first, _ = compare(small, workspace)
    lose_adapters(workspace)
    found, _ = compare(small, again(workspace), keep_weights=True)
    assert "adapter films seed 0: failed: cannot write" in capsys.readouterr().err
    assert runs(found) == runs(first)
