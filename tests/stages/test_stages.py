"""extract, fuse, compare and predict on generated data: what is trained, kept, frozen and repeated."""

import dataclasses
import json
import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from pipeline.records.run_record import RunRecord
from pipeline.records.store import MANIFEST
from pipeline.runs import initial
from pipeline.runs.sources import Fusion
from pipeline.runs.workspace import Part, RunRequest, Workspace
from pipeline.settings.recipe import Recipe
from pipeline.settings.resolve import resolve
from pipeline.stats.metrics import score
from pipeline.system.errors import PipelineError
from stages.extract import extract
from stages.fuse import fuse
from stages.predict import predict
from tests.runs import again, single_run

pytestmark = pytest.mark.usefixtures("trained_once")

Quick = Callable[..., Recipe]
TASKS = ("films", "meals", "pairs")


@pytest.fixture
def adapters(workspace: Workspace, quick: Quick) -> dict[str, RunRecord]:
    return {task: extract(task, quick("adapter"), workspace, seed=1).record for task in TASKS}


def artifact_bytes(record: RunRecord) -> dict[str, bytes]:
    """The files of its artifact, but for when it was finished."""
    files = {file.name: file.read_bytes() for file in Path(record.artifact).iterdir()}
    manifest = {key: value for key, value in json.loads(files[MANIFEST]).items() if key != "finished_at"}
    return files | {MANIFEST: json.dumps(manifest).encode()}


def test_extract_learns_and_says_what_it_cost(workspace: Workspace, quick: Quick) -> None:
    recipe = quick("adapter", epochs=20, batch_size=8, learning_rate=1e-2, pooling="cls")
    record = extract("films", recipe, workspace, seed=0).record
    assert record.dev > 0.7  # from random weights; a coin gets 0.5
    assert record.summary().keys() == {
        "run", "kind", "task", "metric", "dev", "trainable_parameters",
        "seconds", "examples_per_second", "peak_memory_mb", "artifact",
    }  # fmt: skip
    assert record.cost.trainable_parameters == 4 * (2 * 32 * 8 + 32 + 8) + 2 * 32 + 2
    table = workspace.ledger.predictions(record.run)
    assert score("accuracy", table["prediction"].to_numpy(), table["label"].to_numpy()) == record.dev
    assert table[["probability_0", "probability_1"]].sum(axis=1).to_numpy() == pytest.approx(1.0)
    files = {file.name for file in workspace.ledger.folder(record.run).iterdir() if not file.name.startswith(".")}
    assert files == {"run.json", "curve.csv", "predictions.parquet"}
    assert len(pd.read_csv(workspace.ledger.folder(record.run) / "curve.csv")) == 20


def test_the_same_seed_gives_the_same_files_and_a_finished_run_is_not_trained_again(
    workspace: Workspace, quick: Quick, forbid_training: Callable[[], None]
) -> None:
    first = extract("films", quick("adapter"), workspace, seed=0).record
    before = artifact_bytes(first)
    second = extract("films", quick("adapter"), again(workspace), seed=0, force=True).record
    assert artifact_bytes(second) == before
    other = extract("films", quick("adapter"), workspace, seed=5).record
    assert other.run != first.run
    assert artifact_bytes(other)["adapter.safetensors"] != before["adapter.safetensors"]
    forbid_training()
    assert extract("films", quick("adapter"), again(workspace), seed=0).record == second


def test_adapters_and_backbone_stay_bit_identical_through_fusion(
    workspace: Workspace, adapters: dict[str, RunRecord], quick: Quick, monkeypatch
) -> None:
    trained = []
    original = initial.build_for_training

    def remember(*arguments):
        trained.append(original(*arguments))
        return trained[-1]

    monkeypatch.setattr(initial, "build_for_training", remember)
    before = {task: artifact_bytes(record) for task, record in adapters.items()}
    fuse("films", quick("fusion", fusion="anchored"), workspace, seed=1)
    state = trained[0].model.of("films").backbone.state_dict()
    workspace.backbone.check_unchanged(trained[0].model.of("films").backbone)
    for task, record in adapters.items():
        assert artifact_bytes(record) == before[task]
        stored = load_file(Path(record.artifact or "") / "adapter.safetensors")
        assert stored
        assert all(torch.equal(state[name], tensor) for name, tensor in stored.items())


def test_fusion_starts_its_head_from_stage_one(
    workspace: Workspace, adapters: dict[str, RunRecord], quick: Quick
) -> None:
    from pipeline.runs.build import build_for_training

    chosen = Fusion(workspace.task("films"), quick("fusion", fusion="anchored"), workspace).choose(None, seed=1)
    own = next(artifact for artifact in chosen if artifact.manifest.task == "films")
    for head_start, form in product((True, False), ("standard", "anchored")):
        recipe = resolve(quick("fusion", head_start=head_start, fusion=form), workspace.task("films"), "fp32")
        request = RunRequest.single("fusion", workspace.task("films"), recipe, 1, adapters=chosen)
        parts = {"films": Part(workspace.task("films"), recipe)}
        built = build_for_training(request, parts, workspace.backbone, workspace.ledger, own)
        head = load_file(Path(adapters["films"].artifact or "") / "head.safetensors")
        assert torch.equal(built.model.of("films").head.out.weight, head["out.weight"]) == head_start
        assert len(built.without_decay) == (4 if form == "standard" else 0)


@pytest.mark.parametrize(
    ("task", "settings"),
    [
        ("films", {"head": "mlp", "pooling": "cls"}),
        ("films", {"adapter": "pfeiffer"}),
        ("films", {"train_layernorm": True}),
        ("pairs", {"encoding": "siamese"}),
        ("pairs", {"head": "cosine"}),
        ("pairs", {"encoding": "siamese", "head": "linear", "gradient_accumulation_steps": 3}),
        ("films", {"precision": "bf16"}),
    ],
)
def test_prediction_repeats_what_training_saw(task, settings, workspace, quick, data_folder, tmp_path) -> None:
    """On the dev rows, in another order: the same predictions, row by row, as the ledger keeps."""
    record = extract(task, quick("adapter", **settings), workspace, seed=0).record
    rows = pd.read_csv(data_folder / task / "dev.csv", dtype=str).sample(frac=1, random_state=0)
    rows.to_csv(tmp_path / "in.csv", index=False)
    precision = settings.get("precision", "fp32")
    predict(
        task, tmp_path / "in.csv", tmp_path / "out.parquet", again(workspace),
        using="adapter", batch_size=7, precision=precision, raw=True,
    )  # fmt: skip
    found = pd.read_parquet(tmp_path / "out.parquet")
    assert found["id"].tolist() == rows["id"].tolist()
    kept = workspace.ledger.predictions(record.run).set_index("id").loc[found["id"]]
    tolerance = 5e-2 if precision == "bf16" else 1e-4
    column, kept_as = ("prediction",) * 2 if task == "pairs" else ("probability_good", "probability_1")
    assert found[column].to_numpy() == pytest.approx(kept[kept_as].to_numpy(), abs=tolerance)


def test_prediction_takes_the_best_on_dev_and_any_kept_run(workspace, adapters, quick, data_folder, tmp_path) -> None:
    fused = fuse("films", quick("fusion", fusion="anchored"), workspace, seed=1).record
    full = single_run(workspace, "full", "films", quick("full"), seed=1).get()
    source, out = data_folder / "films" / "dev.csv", tmp_path / "out.csv"
    own = adapters["films"]
    best = fused if fused.dev > own.dev else own
    for using, run in (("auto", best.run), ("fusion", fused.run), ("adapter", own.run), (full.run, full.run)):
        written = predict("films", source, out, again(workspace), using=using, batch_size=64, precision="fp32")
        assert (written.tasks[0].name, written.rows) == (run, 40)
        kept = workspace.ledger.predictions(run)
        assert pd.read_csv(out)["prediction"].tolist() == kept["prediction"].map({0: "bad", 1: "good"}).tolist()
    workspace.store.remove(fused.run)
    with pytest.raises(PipelineError, match="fuse --target films"):
        predict("films", source, out, again(workspace), using="fusion", batch_size=64, precision="fp32")
    with pytest.raises(PipelineError, match="was trained for 'meals'"):
        predict("films", source, out, again(workspace), using=adapters["meals"].run, batch_size=64, precision="fp32")


def test_a_task_file_can_stand_anywhere(workspace: Workspace, quick: Quick, data_folder: Path, tmp_path: Path) -> None:
    file = shutil.copy(data_folder / "films" / "task.toml", tmp_path / "mine.toml")
    (data := tmp_path / "data").mkdir()
    shutil.copytree(data_folder / "films", data / "films", ignore=shutil.ignore_patterns("task.toml"))
    apart = dataclasses.replace(workspace, data=data)
    assert (
        extract(str(file), quick("adapter"), apart, seed=0).record
        == extract("films", quick("adapter"), workspace, seed=0).record
    )


def test_a_model_is_not_used_for_a_task_that_has_changed(workspace, adapters, quick, data_folder, tmp_path) -> None:
    """Classes in another order would turn every prediction round, without a word."""
    data = shutil.copytree(data_folder, tmp_path / "data")
    toml = data / "films" / "task.toml"
    toml.write_text(toml.read_text().replace('["bad", "good"]', '["good", "bad"]'))
    changed = dataclasses.replace(workspace, data=data)
    with pytest.raises(PipelineError, match=r"had other classes \(now in another order\): train it"):
        predict(
            "films", data / "films" / "dev.csv", tmp_path / "o.csv", changed,
            using="adapter", batch_size=8, precision="fp32",
        )  # fmt: skip
    with pytest.raises(PipelineError, match="had other classes"):
        fuse("films", quick("fusion", fusion="anchored"), changed, seed=1)
