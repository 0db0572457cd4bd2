"""Where a command names no backbone, a trained model is used on its own."""

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from pipeline.runs.workspace import Workspace
from pipeline.settings.recipe import Recipe
from pipeline.system.errors import PipelineError
from stages.extract import extract
from stages.predict import predict
from tests.nano import save_backbone


def test_models_on_different_backbones_predict_in_one_command(
    workspace: Workspace, quick: Callable[..., Recipe], data_folder: Path, tmp_path: Path
) -> None:
    folder = save_backbone(tmp_path / "other", seed=7)
    places = {"films": workspace, "meals": dataclasses.replace(workspace, backbone_name=str(folder))}
    for task, place in places.items():
        extract(task, quick("adapter", epochs=1), place, seed=0)
    rows, options = data_folder / "films" / "dev.csv", {"using": "auto", "batch_size": 64, "precision": "fp32"}
    unnamed = dataclasses.replace(workspace, backbone_name="")
    written = predict("films,meals", rows, tmp_path / "both.csv", unnamed, **options)
    assert written.passes == 2  # of like adapters on one backbone there would be one
    both = pd.read_csv(tmp_path / "both.csv")
    for task, place in places.items():
        predict(task, rows, tmp_path / "one.csv", dataclasses.replace(place), **options)
        alone = pd.read_csv(tmp_path / "one.csv")
        assert both[f"{task}_probability_good"].to_numpy() == pytest.approx(alone["probability_good"].to_numpy())
    shutil.rmtree(folder)
    with pytest.raises(PipelineError, match="other.*The model was trained on it: give its folder or Hub id"):
        predict("meals", rows, tmp_path / "one.csv", dataclasses.replace(unnamed), **options)
    with pytest.raises(PipelineError, match=r"no model of 'pairs' in .*; .* extract --task pairs trains one"):
        predict("pairs", rows.parents[1] / "pairs" / "dev.csv", tmp_path / "one.csv", unnamed, **options)
