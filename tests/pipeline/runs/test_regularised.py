"""SMART, the proximal point and the order of pairs in whole runs: off is plain training, on is what it says."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from pipeline.data.tokens import swapped
from pipeline.runs.build import build_for_training
from pipeline.runs.scoring import Scoring
from pipeline.runs.training_run import TrainingRun
from pipeline.runs.workspace import Workspace
from pipeline.settings.recipe import Recipe
from pipeline.training.devices import make_accelerator
from stages.fuse import fuse
from stages.predict import predict
from tests.runs import Stopped, joint_run, single_run, stop_at

Quick = Callable[..., Recipe]
BOTH = {"smart": 1.0, "bregman": 1.0}


def make(workspace: Workspace, quick: Quick, trainable: str, task: str, **settings: Any) -> TrainingRun:
    kind = {"head": "frozen"}.get(trainable, trainable)
    recipe = quick(trainable, **{"epochs": 1, "learning_rate": 1e-2, **settings})
    return single_run(workspace, kind, task, recipe, seed=1, limit=40)


@pytest.mark.parametrize(
    ("trainable", "task", "settings", "cosine"),
    [
        ("adapter", "films", {"smart_direction": "gradient"}, (-0.9, 0.9)),
        ("full", "films", {"head_dropout": 0.0, "gradient_accumulation_steps": 2}, (0.999, 1.0001)),
        ("head", "pairs", {"encoding": "siamese"}, (0.8, 1.0001)),
        ("full", "pairs", {"head": "cosine"}, (0.9, 1.0001)),
    ],
)
def test_smart_trains_what_trains_and_shows_its_cosine(trainable, task, settings, cosine, workspace, quick) -> None:
    plain, smooth = (make(workspace, quick, trainable, task, smart=weight, **settings) for weight in (0.0, 5.0))
    records = [plain.get(), smooth.get()]
    curves = [workspace.ledger.curve(record.run) for record in records]
    assert "smart_cosine" not in curves[0]
    assert curves[1]["smart_cosine"].between(*cosine).all()
    assert curves[1]["loss"].iloc[0] != curves[0]["loss"].iloc[0]
    tables = [workspace.ledger.predictions(record.run) for record in records]
    assert not tables[0].equals(tables[1])
    assert records[1].cost.trainable_parameters == records[0].cost.trainable_parameters


def test_fusion_trains_under_both_and_leaves_frozen_weights_alone(workspace: Workspace, quick: Quick) -> None:
    for task in ("films", "meals"):
        make(workspace, quick, "adapter", task).get()
    record = fuse("films", quick("fusion", fusion="anchored", epochs=1, **BOTH), workspace, seed=1, limit=40).record
    assert set(record.unchanged) >= {"films", "meals"}  # measured after training
    curve = workspace.ledger.curve(record.run)
    assert curve["epoch"].tolist() == [0, 1]
    assert curve["smart_cosine"].isna().tolist() == [True, False]


def test_a_stopped_run_ends_bit_for_bit_as_one_never_stopped(workspace, quick, tmp_path, monkeypatch) -> None:
    settings = {**BOTH, "epochs": 2, "pair_order": "random"}
    record = make(workspace, quick, "full", "pairs", **settings).get()
    other = dataclasses.replace(workspace, reports=tmp_path / "stopped", checkpoint_seconds=0.0)
    begun = stop_at(monkeypatch, 5)  # of six, in the second epoch
    with pytest.raises(Stopped):
        make(other, quick, "full", "pairs", **settings).get()
    assert other.ledger.checkpoint_file(record.run).is_file()
    resumed = make(dataclasses.replace(other), quick, "full", "pairs", **settings).get()
    assert (len(begun), resumed.run) == (7, record.run)
    tables = [place.ledger.predictions(record.run) for place in (workspace, other)]
    pd.testing.assert_frame_equal(*tables, check_exact=True)
    curves = [place.ledger.curve(record.run).drop(columns="seconds") for place in (workspace, other)]
    pd.testing.assert_frame_equal(*curves, check_exact=True)


def test_joint_training_takes_all_of_it_each_task_with_its_own_inputs(workspace: Workspace, quick: Quick) -> None:
    tasks = ["films", "pairs"]
    recipe = quick("full", epochs=1, pair_order="random", average_orders=True, truncation="head-and-tail", **BOTH)
    run = joint_run(workspace, tasks, dict.fromkeys(tasks, recipe), seed=1, limits=dict.fromkeys(tasks, 40))
    curve = workspace.ledger.curve(run.get().run)
    assert curve["smart_cosine"].notna().all()


def test_averaging_both_orders_makes_an_answer_that_knows_no_order(workspace: Workspace, quick: Quick) -> None:
    found: dict[bool, list[pd.DataFrame]] = {}
    task = workspace.task("pairs")
    for average in (False, True):
        run = make(workspace, quick, "adapter", "pairs", average_orders=average)
        model = build_for_training(run.request, run.parts, run.backbone, workspace.ledger).model.of(task.name)
        accelerator = make_accelerator("fp32")
        rows = run.data[task.name].dev
        found[average] = [
            Scoring(task, order, run.recipe, run.backbone, accelerator).predict(model.eval()).values
            for order in (rows, swapped(rows))
        ]
    given, turned = found[False]
    assert abs(given - turned).max() > 1e-3
    assert found[True][0] == pytest.approx(found[True][1], abs=1e-6)
    assert found[True][0] == pytest.approx((given + turned) / 2, abs=1e-5)


def test_prediction_reads_rows_as_training_did(workspace: Workspace, quick: Quick, data_folder, tmp_path: Path) -> None:
    settings = {"average_orders": True, "pair_order": "random", "epochs": 2, "max_length": 9}
    record = make(workspace, quick, "adapter", "pairs", **settings).get()
    out = tmp_path / "out.parquet"
    source = data_folder / "pairs" / "dev.csv"
    predict("pairs", source, out, dataclasses.replace(workspace), using="adapter", batch_size=7, precision="fp32")
    kept = workspace.ledger.predictions(record.run)
    assert pd.read_parquet(out)["prediction"].to_numpy() == pytest.approx(kept["prediction"].to_numpy(), abs=1e-4)


def test_l2_sp_pulls_a_tasks_own_layernorms_to_the_pretrained_ones(workspace: Workspace, quick: Quick) -> None:
    recipe = quick("full+adapter", l2_sp=1.0, weight_decay=0.0, train_layernorm=True)
    tasks = ("films", "meals")
    run = joint_run(workspace, tasks, dict.fromkeys(tasks, recipe), limits=dict.fromkeys(tasks), seed=1)
    built = build_for_training(run.request, run.parts, run.backbone, workspace.ledger)
    (penalty,) = run.loss(built, torch.device("cpu"))[2]
    copies = {name: each for name, each in built.model.named_parameters() if ".own.tasks." in name}
    assert len(copies) == 2 * 2 * 2 * built.model.of("films").backbone.config.num_hidden_layers  # tasks, norms, tensors
    start = {name: each.detach().clone() for name, each in copies.items()}
    penalty().backward()
    assert not any(each.grad.any() for each in copies.values() if each.grad is not None)
    with torch.no_grad():
        for each in copies.values():
            each.add_(0.5)
    built.model.zero_grad()
    penalty().backward()
    for name, each in copies.items():
        torch.testing.assert_close(each.grad, each.detach() - start[name])
