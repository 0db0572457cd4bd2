"""Models that are deleted after a study: what is trained again for what is new, and what stands on its records."""

import shutil
from typing import Any

import pytest

from pipeline.records.ledger import Ledger
from pipeline.records.studies import StudyResult
from pipeline.runs.workspace import Workspace
from pipeline.system.errors import PipelineError
from stages.compare.compare import compare, dry_run
from stages.compare.executors.processes import processes
from stages.compare.jobs import Known
from stages.compare.plan import jobs_of, plan
from tests.runs import again
from tests.stages.compare.small import QUICK, study

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
    [({}, 1), *(pytest.param(TUNED, count, marks=pytest.mark.long) for count in (1, 2))],
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
    assert {(entry.method, entry.target) for entry in failed} == {
        ("joined", "films"), ("standard", "films"), ("standard", "meals"),
    }  # fmt: skip
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


IN_TURN: dict[str, Any] = {
    "targets": ["pairs"],
    "sources": ["films", "meals"],
    "limit": 32,
    "recipe": QUICK | {"epochs": 1},
    "rows": {
        "in-turn": {"method": "sequential", "order": ["films", "meals", "pairs"]},
        "later": {"method": "multitask", "after": ["films", "meals"]},
    },
}


@pytest.mark.parametrize("row", ["in-turn", "later"])
def test_a_chain_of_tasks_has_the_weights_of_each_before_the_last_is_trained(row: str, workspace: Workspace) -> None:
    """Their heads are read again, so those of the first task are needed too."""
    small = study(**IN_TURN, methods=["full", row])
    first, _ = compare(small, workspace)
    last = str(runs(first)[row, "pairs"])
    start = workspace.ledger.lineage(workspace.ledger.find(workspace.ledger.find(last).sources[0].run))[0]
    assert (start.kind, start.task) == ("full", "films")
    workspace.ledger.remove(last)
    weights = workspace.ledger.weights_file(start.run)
    weights.unlink()
    assert dry_run(small, again(workspace)).summary()["to_do"] == 2
    found, _ = compare(small, again(workspace))
    assert runs(found) == runs(first)
    assert weights.is_file()


def test_the_last_task_of_a_chain_waits_for_the_first_one(workspace: Workspace) -> None:
    small = study(**IN_TURN, methods=["full", "in-turn"])
    last = next(job for cell, job in jobs_of(small, plan(small)).items() if cell.method == "in-turn")
    (second,) = last.needs
    (first,) = second.needs
    known = Known(workspace, set())
    known.outcomes[second] = PipelineError("second")
    assert not known.can_run(last)
    known.outcomes[first] = PipelineError("first")
    assert known.can_run(last) and known.failed(last)


def test_a_record_whose_weights_were_replaced_does_not_stand(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = study(
        methods=["frozen", "full", "sequential"], reference="frozen", targets=["films", "meals"],
        limit=32, recipe=QUICK | {"epochs": 1},
    )  # fmt: skip
    first, _ = compare(small, workspace, keep_weights=True)
    full = str(runs(first)["full", "films"])
    workspace.ledger.weights_file(full).unlink()

    def refuse(*_: Any) -> None:
        raise PipelineError("disk is full")

    monkeypatch.setattr(Ledger, "finish", refuse)
    found, _ = compare(small, again(workspace), keep_weights=True)
    failed = {("full", "films"), ("sequential:films", "meals")}
    assert runs(found) == runs(first) | dict.fromkeys(failed)
    assert {entry.error for entry in found.entries if entry.run is None} == {"disk is full"}
