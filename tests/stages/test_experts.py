"""A fusion of experts, several adapters of the target: from the command's function to its prediction and export."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.methods.houlsby import load_adapter
from pipeline.methods.registry import add_fusion, use_fusion_implementation
from pipeline.models.backbone import Backbone
from pipeline.records.run_record import RunRecord
from pipeline.runs.build import restore_run
from pipeline.runs.model import load
from pipeline.runs.workspace import Workspace
from pipeline.settings.parse_study import parse_study
from pipeline.settings.recipe import Recipe
from pipeline.settings.study import Study
from pipeline.system.errors import PipelineError
from stages.compare.compare import compare
from stages.explain import explain
from stages.export.export import export
from stages.extract import extract
from stages.fuse import fuse
from stages.prune import prune
from tests.pipeline.methods.adapted import hidden, randomise, save_sources
from tests.pipeline.runs.test_module_kinds import agree

QUICK: dict[str, Any] = {"epochs": 1, "batch_size": 16, "bottleneck": 8, "learning_rate": 5e-2, "precision": "fp32"}
EXPERTS: dict[str, Any] = {"trainable": "fusion", "fusion": "experts", **QUICK}
TEXT = "a very good film"


def recipe(**values: Any) -> Recipe:
    return Recipe.parse({**EXPERTS, **values}, "test")


@pytest.fixture(scope="module")
def fused(place: Workspace) -> RunRecord:
    return fuse("films", recipe(), place, seed=1, sources="meals", experts=2).record


@pytest.fixture(scope="module")
def trained(place: Workspace) -> RunRecord:
    return fuse("films", recipe(train_experts=True), place, seed=1, sources="meals", experts=2).record


def experts_of(place: Workspace, record: RunRecord) -> list[RunRecord]:
    return [place.ledger.find(source.run) for source in record.sources]


@pytest.mark.parametrize("implementation", ["fast", "stock"])
def test_copies_of_an_adapter_are_that_adapter_and_others_their_mean(
    implementation: Any, backbone: Backbone, tmp_path: Path
) -> None:
    sources = save_sources(backbone, ["films", "meals"], tmp_path)
    alone, copies, both, mean = (backbone.load() for _ in range(4))
    load_adapter(alone, "films", sources["films"], ())
    alone.set_active_adapters("films")
    add_fusion(copies, dict.fromkeys(["films@1", "films@2", "films@3"], sources["films"]), recipe(), "films")
    add_fusion(both, sources, recipe(), "films")
    add_fusion(mean, sources, recipe(fusion="mean"), "films")
    for encoder in (copies, both, mean):
        use_fusion_implementation(encoder, implementation)
    torch.testing.assert_close(hidden(copies), hidden(alone), rtol=0, atol=1e-5)
    torch.testing.assert_close(hidden(both), hidden(mean), rtol=0, atol=1e-5)
    randomise(both, "adapter_fusion_layer")
    assert (hidden(both) - hidden(mean)).abs().max() > 1e-2


def test_experts_are_the_runs_of_extract_and_nothing_of_their_mean_trains(place: Workspace, fused: RunRecord) -> None:
    experts = experts_of(place, fused)
    assert [expert.recipe.reshuffle for expert in experts] == [0, 1]
    assert {expert.started_from.task for expert in experts if expert.started_from} == {"meals"}
    quick = Recipe.parse(QUICK, "test")
    assert extract("films", quick, place, seed=1, start_from="meals").record.run == experts[0].run
    assert not extract("films", quick, place, seed=1, start_from="meals").is_new
    assert (fused.cost.trainable_parameters, fused.best_epoch) == (0, 0)
    task = place.task("films")
    heads = [restore_run(each, task, place).head.state_dict() for each in (fused, *experts)]
    for name, tensor in heads[0].items():
        torch.testing.assert_close(tensor, (heads[1][name] + heads[2][name]) / 2)
    again = fuse("films", recipe(), dataclasses.replace(place), seed=1, sources="meals", experts=2)
    assert (again.is_new, again.record.run) == (False, fused.run)
    assert fuse("films", recipe(), place, seed=1, sources="meals", experts=3).record.run != fused.run


def test_what_training_makes_of_the_mean_is_kept_only_if_dev_prefers_it(
    place: Workspace, fused: RunRecord, trained: RunRecord
) -> None:
    assert trained.cost.trainable_parameters > 0
    assert {each.run for each in trained.sources} == {each.run for each in fused.sources}
    curve = place.ledger.curve(trained.run)
    assert curve["dev"].iloc[0] == pytest.approx(fused.dev)
    assert trained.dev >= fused.dev


def test_it_predicts_explains_and_prunes_as_any_fusion(
    place: Workspace, fused: RunRecord, data_folder: Path, tmp_path: Path
) -> None:
    agree(place, "films", fused.run, data_folder, tmp_path)
    model = load("films", store=place.store_root, using=fused.run, backbone=place.backbone_name)
    names = [f"films@{source.run}" for source in fused.sources]
    answer = explain(model, TEXT, [model.sibling(artifact) for artifact in model.beside()])
    assert [each["adapter"] for each in answer["singles"]] == names
    assert list(model.adapters) == names == [each["adapter"] for each in answer["without"]]
    assert answer["mean_shares"] == pytest.approx(dict.fromkeys(names, 0.5), abs=1e-5)
    one = prune("films", place, keep=1, using=fused.run).record
    (left,) = one.sources
    (gone,) = {*names} - {f"films@{left.run}"}
    alone = load("films", store=place.store_root, using=one.run, backbone=place.backbone_name)
    # The temperature is that of the pruned fusion, so the raw outputs are compared.
    (expected,), (found,) = alone.predict([TEXT]), model.predict([TEXT], without=gone)
    assert found.outputs == pytest.approx(expected.outputs, abs=1e-4)


@pytest.mark.parametrize(("format", "name"), [("adapterhub", "fused"), ("adapterhub", "trained"), ("onnx", "trained")])
def test_the_export_answers_as_the_model(
    format: Any, name: str, place: Workspace, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The check that export makes of what it wrote fails otherwise."""
    record = request.getfixturevalue(name)
    made = export("films", tmp_path / "out", dataclasses.replace(place), using=record.run, format=format)
    assert made.checked.texts


def test_a_changed_expert_is_refused(place: Workspace, fused: RunRecord, tmp_path: Path) -> None:
    shutil.copytree(place.store_root, tmp_path / "store")
    copied = dataclasses.replace(place, store_root=tmp_path / "store")
    fusion = copied.store.find(fused.run)
    file = copied.store.adapters_of(fusion.manifest)[1].folder / "adapter.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(PipelineError, match=r"adapter\.safetensors"):
        load("films", store=copied.store_root, using=fused.run, backbone=copied.backbone_name)


def test_a_row_of_experts_is_the_run_of_fuse_over_a_warm_started_row(place: Workspace) -> None:
    result, _ = compare(study(), place)
    record = {entry.method: place.ledger.find(entry.run) for entry in result.entries}
    warm, experts = record["warm"], record["experts"]
    assert experts.sources[0].run == warm.run and len(experts.sources) == 3
    assert experts.own.test is not None and experts.cost.trainable_parameters == 0


@pytest.mark.parametrize(
    "row",
    [
        {"experts": 3, "recipe": {"fusion": "gated"}},
        {"recipe": {"fusion": "experts"}},
        {"experts": 3, "recipe": {"fusion": "experts"}, "own": ["warm"]},
    ],
    ids=["gates", "one", "own"],
)
def test_rows_that_cannot_be_experts_are_refused(row: dict[str, Any]) -> None:
    with pytest.raises(PipelineError, match="experts"):
        study(**row)


def test_the_head_is_always_the_mean_of_the_experts_heads(place: Workspace) -> None:
    runs = []
    for settings in ({}, {"head_start": False}):
        result, _ = compare(study(experts=3, recipe={"fusion": "experts", **settings}), place)
        runs.append(next(entry.run for entry in result.entries if entry.method == "experts"))
    assert runs[0] == runs[1]
    with pytest.raises(PipelineError, match="another head"):
        compare(study(experts=3, recipe={"fusion": "experts", "head": "mlp"}), place)


def test_experts_start_from_one_source(place: Workspace) -> None:
    extract("meals", Recipe.parse(QUICK, "test"), place, seed=1)
    with pytest.raises(PipelineError, match="best:2"):
        fuse("films", recipe(), place, seed=1, sources="best:2")


def study(**row: Any) -> Study:
    rows = {
        "source": {"method": "adapter"},
        "warm": {"method": "adapter", "of": "source", "sources": ["meals"]},
        "experts": {"method": "fusion", "of": "warm", **(row or {"experts": 3, "recipe": {"fusion": "experts"}})},
    }
    values = {"methods": ["warm", "experts"], "targets": ["films"], "sources": ["meals"], "seeds": [0]}
    whole = {**values, "name": "experts", "scoring": "half", "reference": "warm", "recipe": QUICK, "rows": rows}
    return parse_study(whole, "test")
