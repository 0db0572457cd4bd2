"""extract, fuse and predict on every supported family, and what cannot be done there."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from pipeline.models.backbone import Backbone
from pipeline.records.run_record import RunRecord
from pipeline.runs.workspace import Workspace
from pipeline.settings.recipe import Recipe
from pipeline.system.errors import PipelineError
from stages.extract import extract
from stages.fuse import fuse
from stages.predict import predict
from stages.pretrain import pretrain
from tests.runs import Stopped, single_run, stop_at

Quick = Callable[..., Recipe]
NEW = ["electra", "deberta-v2", "modernbert"]


@pytest.fixture
def places(workspace: Workspace, families: dict[str, Backbone]) -> Callable[..., Workspace]:
    def on(family: str, name: str = "first") -> Workspace:
        root = workspace.reports.parent / name
        backbone = families[family].name
        return dataclasses.replace(
            workspace, backbone_name=backbone, store_root=root / "store", reports=root / "reports"
        )

    return on


def predicted(workspace: Workspace, target: str, rows: Path, file: Path, using: str) -> pd.DataFrame:
    settings: dict[str, Any] = {"batch_size": 20, "precision": "fp32", "using": using, "raw": True}
    predict(target, rows, file, dataclasses.replace(workspace), **settings)
    return pd.read_parquet(file)


def agree(workspace: Workspace, record: RunRecord, found: pd.Series) -> None:
    """What the saved model predicts is what training scored."""
    kept = workspace.ledger.predictions(record.run)["probability_1"]
    assert found.to_numpy() == pytest.approx(kept.to_numpy(), abs=1e-5)


@pytest.mark.parametrize("family", [NEW[-1], *(pytest.param(name, marks=pytest.mark.long) for name in NEW[:-1])])
def test_two_stages_and_their_predictions(family, places, quick: Quick, data_folder: Path, tmp_path: Path) -> None:
    workspace, dev, file = places(family), data_folder / "films" / "dev.csv", tmp_path / "out.parquet"
    for task in ("films", "meals"):
        record = extract(task, quick("adapter"), workspace, seed=0).record
        assert record.unchanged["backbone"] == workspace.backbone.weights_hash
    found = predicted(workspace, "films,meals", dev, file, "adapter")  # in one pass, where AdapterHub can
    agree(workspace, extract("films", quick("adapter"), workspace, seed=0).record, found["films_probability_good"])
    devs = {}
    for form in ("gated", "standard"):
        for implementation in ("fast", "stock"):
            recipe = quick("fusion", fusion=form, fusion_impl=implementation)
            record = fuse("films", recipe, workspace, seed=0, sources="films,meals").record
            assert record.unchanged.keys() == {"backbone", *([] if form == "gated" else ["films"]), "meals"}
            devs[form, implementation] = workspace.ledger.predictions(record.run)["probability_1"]
            agree(workspace, record, predicted(workspace, "films", dev, file, record.run)["probability_good"])
        assert devs[form, "fast"].to_numpy() == pytest.approx(devs[form, "stock"].to_numpy(), abs=1e-3)


@pytest.mark.covering(1)
@pytest.mark.parametrize("family", NEW)
@pytest.mark.parametrize(
    ("kind", "trainable", "values"),
    [("adapter", "adapter", {"drop_layers": "0"}), ("full", "full", {"layer_decay": 0.9, "hidden_dropout": 0.1})],
)
def test_a_run_that_was_stopped_ends_as_one_never_stopped(
    family, kind, trainable, values, places, quick: Quick, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(name: str) -> RunRecord:
        workspace = dataclasses.replace(places(family, name), checkpoint_seconds=0.0)
        return single_run(workspace, kind, "films", quick(trainable, batch_size=32, **values), seed=0).get()

    whole = train("whole")
    stop_at(monkeypatch, 5)
    with pytest.raises(Stopped):
        train("stopped")
    record = train("stopped")
    assert (record.dev, record.weights_sha256) == (whole.dev, whole.weights_sha256)
    assert record.artifact_digest == whole.artifact_digest


@pytest.mark.parametrize("family", [NEW[-1], *(pytest.param(name, marks=pytest.mark.long) for name in NEW[:-1])])
def test_a_masked_language_model_of_the_family_is_pretrained_further(family, places, tmp_path: Path) -> None:
    workspace = places(family)
    recipe = Recipe(trainable="full", epochs=4, batch_size=8, learning_rate=1e-2, backbone_learning_rate=5e-3)
    result = pretrain(["films"], tmp_path / "more", recipe, workspace, seed=0).record
    assert 0 <= result.masked_accuracy.after <= 1
    further = dataclasses.replace(workspace, backbone_name=str(tmp_path / "more"))
    assert further.family == family
    assert further.backbone.weights_hash != workspace.backbone.weights_hash


@pytest.mark.parametrize(
    ("family", "kind", "reason"),
    [
        ("distilbert", "unipelt", "unipelt on a DistilBERT: AdapterHub's result depends there on"),
        ("deberta-v2", "prefix", "prefix on a DeBERTa: "),
        ("modernbert", "bitfit", "bitfit on a ModernBERT: it has no biases: use --adapter lora"),
    ],
)
def test_what_cannot_work_is_refused_before_the_backbone_is_read(
    family, kind, reason, places, quick: Quick, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("the backbone was read")

    monkeypatch.setattr("pipeline.runs.workspace.open_backbone", never)
    workspace = places(family)
    with pytest.raises(PipelineError, match=reason):
        extract("films", quick("adapter", adapter=kind), workspace, seed=0)
