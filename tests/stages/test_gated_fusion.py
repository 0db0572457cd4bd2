"""A gated fusion from the command's function to its prediction: what trains, what stays, and what is kept of it."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from pipeline.runs.sources import Fusion, parse_sources
from pipeline.runs.training_run import TrainingRun
from pipeline.system.errors import PipelineError
from stages.extract import extract
from stages.fuse import fuse
from tests.pipeline.runs.test_module_kinds import agree

SOURCES = ("meals", "pairs")


@pytest.fixture
def recipe(quick: Any) -> Any:
    """Of fusions over all sources, whether they help or not."""
    usual = {"fusion": "gated", "learning_rate": 5e-2, "bottleneck": 8, "gate_start": "even"}
    return lambda **values: quick("fusion", **usual | values)


@pytest.fixture
def sources(workspace: Any, quick: Any) -> dict[str, Any]:
    return {task: extract(task, quick("adapter", learning_rate=5e-2), workspace, seed=1).record for task in SOURCES}


def contents(record: Any) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in Path(record.artifact).iterdir()}


def test_a_target_without_an_adapter_is_fused_from_others_alone(
    workspace: Any, sources: dict[str, Any], recipe: Any, data_folder: Path, tmp_path: Path
) -> None:
    before = {task: contents(record) for task, record in sources.items()}
    record = fuse("films", recipe(), workspace, seed=1).record
    assert [source.task for source in record.sources] == list(SOURCES)
    width, sites = workspace.backbone.hidden_size, 2 * workspace.backbone.layers
    own = 2 * 8 * width + 8 + width
    assert record.cost.trainable_parameters == sites * (own + len(SOURCES) * (width + 1)) + record.parameters.head
    assert {task: contents(record) for task, record in sources.items()} == before
    agree(workspace, "films", record.run, data_folder, tmp_path)
    shares = pd.read_csv(workspace.ledger.folder(record.run) / "attention.csv")
    assert set(shares["adapter"]) == {*SOURCES, "films"}
    assert shares.groupby(["layer", "site"])["weight"].sum().to_numpy() == pytest.approx(1.0)


@pytest.mark.parametrize("chosen", ["pairs", None])
def test_a_warm_own_adapter_is_initialised_from_the_source_that_the_probe_prefers(
    chosen: str | None,
    workspace: Any,
    sources: dict[str, Any],
    recipe: Any,
    data_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At a rate of nearly nothing it ends as it began; where the probe prefers none it is a fresh one."""
    seen: list[list[str]] = []

    def choose(chooser: Any) -> Any:
        adapters = chooser.request.adapters
        seen.append([adapter.manifest.task for adapter in adapters])
        return next((adapter for adapter in adapters if adapter.manifest.task == chosen), None)

    monkeypatch.setattr("pipeline.runs.initial.Chooser.choose_start", choose)
    still = recipe().changed({"learning_rate": 1e-12})
    warm = fuse("films", still.changed({"own_adapter": "warm"}), workspace, seed=1).record
    assert seen == [list(SOURCES)] and warm.anchor == chosen
    found = load_file(Path(warm.artifact or "") / "gated_fusion.safetensors")
    if chosen is None:
        fresh = fuse("films", still, workspace, seed=1).record
        expected = load_file(Path(fresh.artifact or "") / "gated_fusion.safetensors")
    else:
        saved = load_file(Path(sources[chosen].artifact) / "adapter.safetensors")
        sites = sorted({name.split(f".{chosen}.")[0] for name in saved})  # attention before FFN, layer by layer
        expected = {
            f"{sites.index(site)}.own.{rest}": tensor
            for name, tensor in saved.items()
            for site, rest in [name.split(f".{chosen}.")]
        }
    own = {name: tensor for name, tensor in found.items() if ".own." in name}
    assert len(own) == 4 * 2 * workspace.backbone.layers
    for name, tensor in own.items():
        torch.testing.assert_close(tensor, expected[name], rtol=0, atol=1e-6)
    agree(workspace, "films", warm.run, data_folder, tmp_path)


@pytest.mark.parametrize("own", ["trained", "frozen", "none"])
def test_the_adapter_of_stage_one_in_its_place(
    own: str, workspace: Any, sources: dict[str, Any], recipe: Any, quick: Any, data_folder: Path, tmp_path: Path
) -> None:
    stage_one = extract("films", quick("adapter", bottleneck=8, learning_rate=5e-2), workspace, seed=1).record
    before = contents(stage_one)
    record = fuse("films", recipe(own_adapter=own), workspace, seed=1).record
    assert [source.task for source in record.sources] == ["films", *SOURCES]
    assert contents(stage_one) == before
    saved = load_file(Path(record.artifact or "") / "gated_fusion.safetensors")
    assert any(".own." in name for name in saved) == (own == "trained")
    assert ("films" in record.unchanged) == (own != "trained")
    agree(workspace, "films", record.run, data_folder, tmp_path)


def test_what_cannot_be_fused_is_refused(workspace: Any, recipe: Any, quick: Any) -> None:
    with pytest.raises(PipelineError, match="needs adapters of another task, but none is here: .*extract --task TASK"):
        fuse("films", recipe(), workspace, seed=1)
    extract("meals", quick("adapter"), workspace, seed=1)
    with pytest.raises(PipelineError, match="films: no adapter in .*extract --task films"):
        fuse("films", recipe(own_adapter="trained"), workspace, seed=1)
    extract("pairs", quick("adapter"), workspace, seed=1)
    with pytest.raises(PipelineError, match="own_adapter = 'frozen'"):
        fusion = Fusion(workspace.task("films"), recipe(own_adapter="frozen"), workspace)
        chosen = fusion.choose(parse_sources("meals,pairs", workspace), seed=1)
        TrainingRun(fusion.request(chosen, seed=1, limit=None), workspace).get()
