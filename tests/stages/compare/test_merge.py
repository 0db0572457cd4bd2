"""Rows of merged adapters, from the study to predict."""

import dataclasses
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from pipeline.data.tasks import find_task
from pipeline.methods.bank import ties
from pipeline.records.run_record import RunRecord
from pipeline.runs.training_run import TrainingRun
from pipeline.runs.workspace import Workspace
from pipeline.settings.parse_study import parse_study
from pipeline.settings.recipe import Recipe
from pipeline.settings.resolve import resolve
from pipeline.settings.study import Study
from pipeline.system.errors import PipelineError
from stages.compare.check import checked
from stages.compare.compare import compare, dry_run
from stages.extract import extract

pytestmark = pytest.mark.usefixtures("trained_once")

QUICK: dict[str, Any] = {"epochs": 4, "batch_size": 16, "bottleneck": 8, "learning_rate": 5e-3}
ROWS: dict[str, Any] = {
    "merge": {},
    "ties": {"method": "merge", "recipe": {"merge": "ties"}},
    "on": {"method": "merge", "recipe": {"train_merged": True}},
}


def study(rows: dict[str, Any] = ROWS, **values: Any) -> Study:
    given = {"name": "merged", "methods": ["adapter", *rows], "reference": "adapter", "targets": ["films"]}
    given |= {"sources": ["meals", "pairs"], "seeds": [3], "recipe": QUICK, "rows": rows}
    return parse_study({**given, **values}, "test")


@pytest.fixture(scope="module")
def compared(place):
    result, folder = compare(study(), place)
    assert [entry.error for entry in result.entries] == [None] * 4
    records = {entry.method: place.ledger.find(entry.run) for entry in result.entries}
    return place, records, folder


def weights(workspace: Workspace, run: str) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Of the adapter in one vector, and of its head."""
    artifact = workspace.store.find(run)
    tensors = load_file(artifact.folder / "adapter.safetensors")
    return torch.cat([tensors[name].flatten() for name in sorted(tensors)]), load_file(
        artifact.folder / "head.safetensors"
    )


def sources(workspace: Workspace, record: RunRecord) -> torch.Tensor:
    return torch.stack([weights(workspace, source.run)[0] for source in record.sources])


def test_it_is_made_of_the_targets_own_adapter_and_the_sources(compared) -> None:
    workspace, records, _ = compared
    merged, own = records["merge"], records["adapter"]
    assert [source.task for source in merged.sources] == ["films", "meals", "pairs"]
    assert merged.sources[0].run == own.run
    adapter, head = weights(workspace, merged.run)
    torch.testing.assert_close(adapter, sources(workspace, merged).mean(0))
    own_head = weights(workspace, own.run)[1]
    assert all(torch.equal(head[name], own_head[name]) for name in own_head)
    assert (merged.cost.trainable_parameters, merged.best_epoch) == (0, 0)
    assert merged.unchanged["backbone"] == workspace.backbone.weights_hash


def test_adapters_of_one_seed_start_from_the_same_weights_whatever_their_tasks(
    workspace: Workspace, compared: Any
) -> None:
    """Without it neither rule would mean anything. Of pairs the encoding may even be another."""
    still = {**QUICK, "epochs": 1, "learning_rate": 1e-30, "weight_decay": 0}
    starts = {
        (task, seed): weights(workspace, extract(task, Recipe(**{**still, **own}), workspace, seed=seed).record.run)[0]
        for task, own, seed in (("films", {}, 3), ("meals", {"batch_size": 8}, 3), ("meals", {}, 4))
    }
    pairs = weights(workspace, extract("pairs", Recipe(**still, encoding="siamese"), workspace, seed=3).record.run)[0]
    torch.testing.assert_close(starts["films", 3], starts["meals", 3], rtol=0, atol=1e-20)
    torch.testing.assert_close(starts["films", 3], pairs, rtol=0, atol=1e-20)
    assert (starts["meals", 3] - starts["meals", 4]).abs().max() > 1e-3
    there, records, _ = compared
    merged = records["ties"]
    vectors = sources(there, merged) - pairs
    torch.testing.assert_close(weights(there, merged.run)[0], pairs + ties(vectors, 0.2), rtol=1e-4, atol=1e-6)


def test_trained_on_it_starts_as_the_merged_one(compared) -> None:
    workspace, records, _ = compared
    curve = workspace.ledger.curve(records["on"].run)
    assert list(curve["epoch"]) == [0, 1, 2, 3, 4]
    assert curve["dev"][0] == pytest.approx(records["merge"].dev)
    assert records["on"].dev >= records["merge"].dev
    assert records["on"].cost.trainable_parameters == records["adapter"].cost.trainable_parameters


def test_a_second_compare_trains_nothing_and_the_report_says_what_it_costs(
    compared, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace, records, folder = compared
    monkeypatch.setattr(TrainingRun, "train", lambda _: pytest.fail("trained"))
    result, _ = compare(study(), dataclasses.replace(workspace))
    assert {entry.method: entry.run for entry in result.entries} == {m: r.run for m, r in records.items()}
    seconds = {entry.method: entry.total_seconds for entry in result.entries}
    bases = [workspace.ledger.find(source.run).cost.seconds for source in records["merge"].sources]
    assert seconds["merge"] == pytest.approx(records["merge"].cost.seconds + sum(bases))
    assert dry_run(study(), dataclasses.replace(workspace)).total.left.seconds == 0
    assert "merged adapters" in (folder / "tables.md").read_text()


def test_settings_of_training_tell_only_trained_ones_apart() -> None:
    def identity(**values: Any) -> dict[str, Any]:
        return resolve(Recipe.parse(values, "test"), find_task("sst"), "fp32").identity

    assert identity(merge="mean") == identity(merge="mean", epochs=9, ties_density=0.5, weight_decay=0, smart=1)
    assert identity(merge="ties") != identity(merge="ties", ties_density=0.5)
    assert identity(merge="mean") != identity(merge="mean", bottleneck=8)
    assert identity(merge="mean", train_merged=True) != identity(merge="mean", train_merged=True, epochs=9)
    assert identity() == identity(train_merged=True, ties_density=0.5)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"merge": {"of": "full"}}, "'full' is a row of full, but merge is built on adapter"),
        ({"w": {"method": "adapter", "of": "adapter"}, "merge": {"of": "w"}}, "'w' is warm-started itself"),
        ({"merge": {"own": ["adapter"]}}, "rows.merge.own: only a row of fusion"),
        ({"merge": {"recipe": {"merge": "sum"}}}, "merge: Input should be 'none', 'mean' or 'ties'"),
        ({"merge": {"recipe": {"merge": "ties", "ties_density": 0}}}, "ties_density: Input should be greater than 0"),
    ],
)
def test_what_cannot_be_merged_is_told_at_once(rows: dict[str, Any], message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        study(rows)


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        ({"bottleneck": 4}, r"merge on films: the adapter of films \(row adapter\) is 8 wide, not 4"),
        ({"adapter": "pfeiffer"}, "is of kind houlsby, not pfeiffer"),
        ({"adapter": "lora"}, "is of kind houlsby, not lora"),
        ({"drop_layers": "0"}, "leaves out other layers"),
        ({"head": "mlp"}, "has another head"),
    ],
)
def test_adapters_that_do_not_fit_are_told_before_training(
    recipe: dict[str, Any], message: str, workspace: Workspace
) -> None:
    with pytest.raises(PipelineError, match=message):
        checked(study({"merge": {"recipe": recipe}}), workspace)
