"""What a run measures beside its own score: forgetting, what stayed unchanged, attention, an untrained model."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file

from pipeline.models.backbone import hash_tensors
from pipeline.records.run_record import RunRecord
from pipeline.runs.workspace import Workspace
from pipeline.settings.recipe import Recipe
from pipeline.stats.metrics import score
from stages.extract import extract
from stages.fuse import fuse
from tests.runs import single_run

pytestmark = pytest.mark.usefixtures("trained_once")

Quick = Callable[..., Recipe]


def full(workspace: Workspace, quick: Quick, task: str, **settings: object) -> RunRecord:
    return single_run(workspace, "full", task, quick("full", **settings), seed=1).get()


def sequential(workspace: Workspace, quick: Quick, task: str, start: RunRecord, **settings: object) -> RunRecord:
    return single_run(workspace, "sequential", task, quick("full", **settings), seed=1, start=start).get()


def test_what_was_forgotten_is_measured_with_the_sources_head(workspace: Workspace, quick: Quick) -> None:
    settings = {"epochs": 10, "batch_size": 8, "learning_rate": 1e-2}
    start = full(workspace, quick, "films", **settings)
    record = sequential(workspace, quick, "pairs", start, **settings)
    other = record.scores["films"]
    table = workspace.ledger.predictions(record.run, "films")
    assert score("accuracy", table["prediction"].to_numpy(), table["label"].to_numpy()) == other.dev
    probabilities = workspace.ledger.predictions(start.run)["probability_1"].to_numpy()
    assert table["probability_1"].to_numpy() != pytest.approx(probabilities, abs=1e-3)
    assert record.unchanged == {}
    # The run's own score is the target's, as without all this.
    own = workspace.ledger.predictions(record.run)
    assert score("pearson", own["prediction"].to_numpy(), own["label"].to_numpy()) == record.dev


def test_a_source_scored_on_other_rows_than_before_has_no_before(workspace: Workspace, quick: Quick) -> None:
    start = full(workspace, quick, "films")
    assert start.dev is not None
    fewer = dataclasses.replace(workspace, dev_limit=20)
    other = sequential(fewer, quick, "meals", start).scores["films"]
    assert (other.before, other.rows) == (None, 20)


def test_adapter_and_fusion_runs_prove_what_they_left_unchanged(workspace: Workspace, quick: Quick) -> None:
    backbone = {"backbone": workspace.backbone.weights_hash}
    adapters = {task: extract(task, quick("adapter"), workspace, seed=1).record for task in ("films", "meals")}
    assert all(record.unchanged == backbone for record in adapters.values())
    fused = fuse("films", quick("fusion", fusion="anchored"), workspace, seed=1).record
    files = {
        task: hash_tensors(load_file(Path(record.artifact or "") / "adapter.safetensors"))
        for task, record in adapters.items()
    }
    assert fused.unchanged == backbone | files
    assert {source.task: source.tensors for source in fused.sources} == files
    head = single_run(workspace, "frozen", "films", quick("head"), seed=1).get()
    assert head.unchanged == backbone
    assert full(workspace, quick, "films").unchanged == {}
    norms = extract("films", quick("adapter", train_layernorm=True), workspace, seed=1).record
    assert norms.unchanged == {}


@pytest.mark.parametrize("settings", [{"pooling": "cls"}, {"precision": "bf16"}])
def test_a_fusion_tells_what_it_listens_to(settings: dict[str, str], workspace: Workspace, quick: Quick) -> None:
    for task in ("films", "meals"):
        record = extract(task, quick("adapter"), workspace, seed=1).record
        assert workspace.ledger.attention(record.run) is None
    fused = fuse("films", quick("fusion", fusion="anchored", **settings), workspace, seed=1).record
    attention = workspace.ledger.attention(fused.run)
    keys = attention[["layer", "site", "adapter"]].apply(tuple, axis=1).tolist()
    assert keys == [(la, site, name) for la in (0, 1) for site in ("attention", "ffn") for name in ("films", "meals")]
    assert attention.groupby(["layer", "site"])["weight"].sum().to_numpy() == pytest.approx(1.0)


def test_a_scored_start_is_the_first_point_of_the_curve(workspace: Workspace, quick: Quick) -> None:
    for task in ("films", "meals"):
        extract(task, quick("adapter"), workspace, seed=1)
    fused = fuse("films", quick("fusion", fusion="anchored", score_start=True), workspace, seed=1).record
    curve = workspace.ledger.curve(fused.run)
    assert curve["epoch"].tolist() == [0, 1, 2]
    assert curve["loss"].isna().tolist() == [True, False, False]
    assert fused.dev == curve["dev"].max()
    assert fused.best_epoch == curve.loc[curve["dev"].idxmax(), "epoch"]
    # What is kept and predicts is the epoch that is said to be kept.
    table = workspace.ledger.predictions(fused.run)
    assert score("accuracy", table["prediction"].to_numpy(), table["label"].to_numpy()) == fused.dev
