"""Tasks that one model or one adapter learns in turn: what it starts from, what it is scored on, what it forgets."""

from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from pipeline.records.run_record import RunRecord
from pipeline.reporting.notes import notes
from pipeline.reporting.runs import StudyRuns
from pipeline.reporting.transfer import changes
from pipeline.runs.workspace import Workspace
from pipeline.system.errors import PipelineError
from stages.compare.check import checked
from stages.compare.compare import compare
from tests.runs import again
from tests.stages.compare.small import study


def test_a_model_that_goes_through_tasks_in_turn_is_scored_on_all_of_them(workspace: Workspace) -> None:
    small = study(
        methods=["full", "in-turn"],
        rows={"in-turn": {"method": "sequential", "order": ["films", "meals", "pairs"]}},
        targets=["films", "pairs"],
        sources=["meals"],
        limit=48,
    )
    result, _ = compare(small, workspace)
    cells = {entry.target: entry for entry in result.entries if entry.method == "in-turn"}
    assert cells["films"].run == cells["pairs"].run
    record = workspace.ledger.find(cells["pairs"].run)
    assert (record.task, set(record.scores)) == ("pairs", {"films", "meals", "pairs"})
    steps = workspace.ledger.lineage(record)
    assert [(step.kind, step.task) for step in steps] == [
        ("full", "films"), ("sequential", "meals"), ("sequential", "pairs"),
    ]  # fmt: skip
    assert record.scores["films"].before == steps[0].dev
    assert cells["films"].total_seconds == pytest.approx(sum(step.cost.seconds for step in steps))
    found = changes(StudyRuns(result, workspace.ledger))
    assert [(change.source, change.target) for change in found] == [("films", "pairs"), ("meals", "pairs")]
    assert all(change.comparison is not None for change in found)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"full": {"recipe": {"second_encoder": "static"}}}, "has trainable = 'full', second_encoder = 'static': only"),
        (
            {"full": {"recipe": {"trainable": "full+adapter"}}},
            "has trainable = 'full\\+adapter', second_encoder = 'none'",
        ),
        (
            {"full": {"recipe": {"pooling": "mean"}}, "next": {"recipe": {"pooling": "pooler"}}},
            "has pooling 'mean', and",
        ),
        (
            {"full": {"recipe": {"pooling": "pooler"}}, "next": {"recipe": {"pooling": "mean"}}},
            "has pooling 'pooler', and",
        ),
    ],
    ids=str,
)
@pytest.mark.parametrize("by", ["sequential", "multitask"])
def test_what_cannot_be_tuned_further_is_told_before_training(
    by: str, rows: dict[str, Any], message: str, workspace: Workspace
) -> None:
    turn = {"method": by} | ({"of": "full", "after": ["pairs"]} if by == "multitask" else {})
    rows = {**rows, "next": {**turn, **rows.get("next", {})}}
    expected = rf"next on [a-z+]*: the model of pairs \(row full\) {message}"
    with pytest.raises(PipelineError, match=expected):
        checked(study(methods=["full", "next"], sources=["pairs"], rows=rows), workspace)
    checked(study(methods=["full", "next"], sources=["pairs"], rows={"next": turn}), workspace)


def test_an_adapter_that_goes_through_tasks_begins_as_the_last_and_leaves_each_as_it_was(workspace: Workspace) -> None:
    still = {"epochs": 1, "learning_rate": 1e-30, "weight_decay": 0}
    small = study(
        methods=["adapter", "through", "one", "warm"],
        rows={
            "through": {"method": "adapter", "through": ["pairs", "meals"], "recipe": still},
            "one": {"method": "adapter", "through": ["meals"], "recipe": still},
            "warm": {"method": "adapter", "of": "adapter", "sources": ["meals"], "recipe": still},
        },
        sources=["meals", "pairs"],
        limit=48,
    )
    result, _ = compare(small, workspace)
    found = {entry.method: workspace.ledger.find(str(entry.run)) for entry in result.entries}
    steps = workspace.ledger.lineage(found["through"])
    assert [(step.kind, step.task, step.anchor) for step in steps] == [
        ("adapter", "pairs", None), ("adapter", "meals", "pairs"), ("adapter", "films", "meals"),
    ]  # fmt: skip

    def weights(record: RunRecord) -> dict[str, torch.Tensor]:
        artifact = workspace.store.find(record.run)
        artifact.verify()
        tensors = load_file(artifact.folder / "adapter.safetensors")
        return {name.replace(f".adapters.{record.task}.", "."): tensor for name, tensor in tensors.items()}

    first, second, last = map(weights, steps)
    assert all(torch.equal(second[name], last[name]) for name in last)
    assert not all(torch.equal(first[name], second[name]) for name in second)
    # Built on the same adapter, of which a probe chooses whether the warm-started one begins as it.
    one, warm = found["one"], found["warm"]
    assert (one.anchor, warm.anchor, one.sources[0].run) == ("meals", None, warm.sources[0].run)
    assert one.run != warm.run
    (cell,) = [entry for entry in result.entries if entry.method == "through"]
    assert cell.total_seconds == pytest.approx(sum(step.cost.seconds for step in steps))
    runs = StudyRuns(result, workspace.ledger)
    starts = [note for note in notes(runs) if note.startswith("Start of")]
    assert [note.split(",")[0] for note in starts] == ["Start of warm"]
    assert compare(small, again(workspace))[0] == result
