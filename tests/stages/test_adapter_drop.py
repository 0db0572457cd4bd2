"""extract, fuse and predict without the adapters of some layers."""

import dataclasses
from pathlib import Path

import pandas as pd
import pytest

from pipeline.runs.workspace import Workspace
from pipeline.system.errors import PipelineError
from stages.extract import extract
from stages.fuse import fuse
from stages.predict import predict
from tests.nano import save_backbone
from tests.pipeline.runs.test_module_kinds import agree
from tests.runs import single_run

pytestmark = pytest.mark.usefixtures("trained_once")


def predicted(workspace: Workspace, rows: Path, folder: Path, **settings: object) -> pd.Series:
    predict(
        "films", rows, folder / "out.parquet", dataclasses.replace(workspace),
        batch_size=20, precision="fp32", **{"using": "auto", **settings},
    )  # fmt: skip
    return pd.read_parquet(folder / "out.parquet")["probability_good"]


@pytest.mark.covering(1)
@pytest.mark.parametrize("settings", [{}, {"train_layernorm": True}])
@pytest.mark.parametrize("family", ["bert", "distilbert"])
def test_an_adapter_without_a_layer_predicts_what_training_saw(
    settings, family, workspace, quick, data_folder, tmp_path
) -> None:
    backbone = save_backbone(tmp_path / "backbone", family)
    workspace = dataclasses.replace(workspace, backbone_name=str(backbone))
    record = extract("films", quick("adapter", drop_layers=[0], **settings), workspace, seed=0).record
    norms = 2 * 2 * 32 if settings else 0
    assert record.cost.trainable_parameters == 2 * (2 * 32 * 8 + 32 + 8) + norms + 2 * 32 + 2
    agree(workspace, "films", record.run, data_folder, tmp_path)


def test_layers_are_dropped_from_a_trained_model(workspace, quick, data_folder, tmp_path) -> None:
    rows = data_folder / "films" / "dev.csv"
    for task in ("films", "meals"):
        extract(task, quick("adapter", learning_rate=5e-2), workspace, seed=0)
    fuse("films", quick("fusion", fusion="anchored"), workspace, seed=0)
    for using in ("adapter", "fusion"):
        whole = predicted(workspace, rows, tmp_path, using=using)
        dropped = predicted(workspace, rows, tmp_path, using=using, drop_layers=(0,))
        assert not whole.equals(dropped)
    with pytest.raises(PipelineError, match="all layers"):
        predicted(workspace, rows, tmp_path, drop_layers=(0, 1))
    full = single_run(workspace, "full", "films", quick("full"), seed=0).get()
    with pytest.raises(PipelineError, match=r"run .* \(full\) has no adapters to leave out"):
        predicted(workspace, rows, tmp_path, using=full.run, drop_layers=(0,))
