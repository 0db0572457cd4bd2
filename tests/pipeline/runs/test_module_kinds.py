"""Every kind of modules from extract to predict and through the store, and in joint training of several tasks."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from pipeline.methods.registry import METHODS
from pipeline.methods.saved import ADAPTER_CONFIG, ADAPTER_FILE, MODULES_FILE, SiteAdapter
from pipeline.records.store import Store
from pipeline.runs.training_run import TrainingRun
from pipeline.runs.workspace import Workspace
from pipeline.settings.recipe import Recipe
from pipeline.system.errors import PipelineError
from stages.archives import export_artifact, import_artifacts
from stages.extract import extract
from stages.predict import predict
from tests.nano import SIZES
from tests.runs import joint_run, single_run

Quick = Callable[..., Recipe]
KINDS = list(METHODS)
OFTEN = ["houlsby", "pal", "unipelt"]
"""The kinds for which ``make test`` trains every way: AdapterHub's, ours, and one of several modules."""
BY_KIND = [*OFTEN, *(pytest.param(kind, marks=pytest.mark.long) for kind in KINDS if kind not in OFTEN)]


def agree(workspace: Workspace, task: str, run: str, data: Path, folder: Path, **settings: Any) -> None:
    """Predictions of a fresh process on the dev rows are those the ledger keeps."""
    out = folder / "out.parquet"
    predict(
        task, data / task / "dev.csv", out, dataclasses.replace(workspace),
        using=settings.pop("using", run), batch_size=7, precision="fp32", raw=True, **settings,
    )  # fmt: skip
    found, kept = pd.read_parquet(out), workspace.ledger.predictions(run)
    column, kept_as = ("prediction",) * 2 if task == "pairs" else ("probability_good", "probability_1")
    assert found[column].to_numpy() == pytest.approx(kept[kept_as].to_numpy(), abs=1e-4)


@pytest.mark.parametrize(
    ("kind", "task", "settings"),
    [
        *((kind, "films", {"pooling": "cls"}) for kind in KINDS),
        ("pal", "pairs", {"encoding": "siamese", "drop_layers": [0]}),
        pytest.param("prefix", "films", {"pooling": "cls", "drop_layers": [0]}, marks=pytest.mark.long),
        ("prefix", "pairs", {"encoding": "siamese"}),
        pytest.param("prefix-tuning", "pairs", {"drop_layers": [0]}, marks=pytest.mark.long),
        pytest.param("lora", "pairs", {"drop_layers": [0]}, marks=pytest.mark.long),
        ("unipelt", "pairs", {"encoding": "siamese", "drop_layers": [0]}),
        pytest.param("bitfit", "pairs", {"encoding": "siamese", "drop_layers": [0]}, marks=pytest.mark.long),
    ],
)
def test_from_extract_to_predict_and_through_an_export(
    kind: str, task: str, settings: Any, workspace: Workspace, quick: Quick, data_folder: Path, tmp_path: Path
) -> None:
    record = extract(task, quick("adapter", adapter=kind, epochs=1, **SIZES, **settings), workspace, seed=0).record
    assert set(record.unchanged) == {"backbone"}
    artifact = workspace.store.find(record.run)
    artifact.verify()
    names = {file.name for file in artifact.folder.iterdir()} - {"manifest.json", "head.safetensors", "seen.parquet"}
    ours = isinstance(METHODS[kind], SiteAdapter)
    assert names == ({MODULES_FILE} if ours else {ADAPTER_CONFIG, ADAPTER_FILE})
    agree(workspace, task, record.run, data_folder, tmp_path, using="adapter")
    export_artifact(workspace.store, record.run, tmp_path / "out.tar.xz")
    workspace.store.remove(record.run)
    import_artifacts(Store(workspace.store.root), tmp_path / "out.tar.xz")
    agree(workspace, task, record.run, data_folder, tmp_path)


@pytest.mark.parametrize("kind", BY_KIND)
def test_modules_train_with_the_backbone_and_are_kept_with_it(
    kind: str, workspace: Workspace, quick: Quick, data_folder: Path, tmp_path: Path
) -> None:
    recipe = quick("full+adapter", adapter=kind, epochs=1, **SIZES)
    record = single_run(workspace, "full", "films", recipe, seed=0).get()
    assert record.cost.trainable_parameters > workspace.backbone.parameters + 66
    agree(workspace, "films", record.run, data_folder, tmp_path)
    with pytest.raises(PipelineError, match="only full fine-tuning of one encoder without modules"):
        single_run(workspace, "sequential", "meals", quick("full", epochs=1), seed=0, start=record).get()


# Joint training.


def joint(workspace: Workspace, quick: Quick, tasks: tuple[str, ...], trainable: str, **values: Any) -> TrainingRun:
    recipes = dict.fromkeys(tasks, quick(trainable, **{"epochs": 1, **SIZES, **values}))
    return joint_run(workspace, tasks, recipes, seed=1, limits=dict.fromkeys(tasks))


@pytest.mark.parametrize(
    ("trainable", "settings"),
    [
        ("head", {}),
        *(("adapter", {"adapter": kind}) for kind in OFTEN),
        *(pytest.param("adapter", {"adapter": kind}, marks=pytest.mark.long) for kind in KINDS if kind not in OFTEN),
        pytest.param("adapter", {"train_layernorm": True}, marks=pytest.mark.long),
        ("full+adapter", {"adapter": "pal"}),
        ("full+adapter", {"train_layernorm": True}),
    ],
    ids=str,
)
def test_two_tasks_train_over_one_backbone(trainable: str, settings: Any, workspace: Workspace, quick: Quick) -> None:
    record = joint(workspace, quick, ("films", "pairs"), trainable, **settings).get()
    assert "films" in record.trained_on
    assert set(record.scores) == {"films", "pairs"}
    whole = record.cost.trainable_parameters > workspace.backbone.parameters
    assert whole == (trainable == "full+adapter")
