"""fuse --sources best:N fuses the adapters that linear probes of the target's rows prefer."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from pipeline.records.run_record import RunRecord
from pipeline.runs import initial, training_run
from pipeline.runs.build import restore
from pipeline.runs.workspace import Workspace
from pipeline.settings.recipe import Recipe
from pipeline.system.errors import PipelineError
from stages.extract import extract
from stages.fuse import fuse

Quick = Callable[..., Recipe]


@pytest.fixture(scope="module")
def stocked(
    backbone_folder: Path, data_folder: Path, quick: Quick, tmp_path_factory: pytest.TempPathFactory
) -> Workspace:
    """Adapters of meals, which knows what films needs; of coins, whose labels are drawn; of films and pairs."""
    folder = tmp_path_factory.mktemp("best")
    data = folder / "data"
    shutil.copytree(data_folder, data)
    shutil.copytree(data / "meals", data / "coins")
    toml = data / "coins" / "task.toml"
    toml.write_text(toml.read_text().replace('"meals"', '"coins"'))
    rows = pd.read_csv(data / "coins" / "train.csv")
    rows["label"] = np.random.default_rng(0).permutation(rows["label"])
    rows.to_csv(data / "coins" / "train.csv", index=False)
    place = Workspace(str(backbone_folder), data, folder / "store", folder / "reports")
    for task, epochs in {"coins": 4, "films": 1, "meals": 30, "pairs": 1}.items():
        extract(task, quick("adapter", epochs=epochs, learning_rate=1e-2, bottleneck=32), place, seed=1)
    return place


def fused(place: Workspace, quick: Quick, tmp_path: Path, target: str = "films", **settings: object) -> RunRecord:
    """A fusion of the best adapter, beside the store's own files."""
    options = {"fusion": "gated", "epochs": 1, **settings}
    return fuse(target, quick("fusion", **options), replace(place, reports=tmp_path), seed=1, sources="best:1").record


@pytest.mark.parametrize("whole", [1, pytest.param(16, marks=pytest.mark.long)])
def test_of_several_the_one_that_knows_the_target_is_fused(
    whole: int,
    stocked: Workspace,
    quick: Quick,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """Whether all are run whole, or two are left after probes of the bottlenecks."""
    monkeypatch.setattr(initial, "WHOLE", whole)
    record = fused(stocked, quick, tmp_path)
    assert [source.task for source in record.sources] == ["meals"]
    said = capsys.readouterr().err
    assert "on 96 training rows: meals " in said and said.count("chosen: meals") == 1
    assert ("of 3 probed at their bottlenecks" in said) == (whole == 1)
    assert fused(stocked, quick, tmp_path) == record


def test_the_targets_own_adapter_stays_and_is_not_counted(stocked: Workspace, quick: Quick, tmp_path: Path) -> None:
    record = fused(stocked, quick, tmp_path, fusion="anchored", fusion_rank=4)
    assert [source.task for source in record.sources] == ["films", "meals"]


@pytest.mark.parametrize("encoding", ["cross", "siamese"])
def test_pairs_are_read_as_the_target_reads_them(
    encoding: str, stocked: Workspace, quick: Quick, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(initial, "WHOLE", 1)
    read: list[int] = []
    probe = initial.probe

    def recorded(features: np.ndarray, *arguments: Any) -> np.ndarray:
        read.append(features.shape[1])
        return probe(features, *arguments)

    monkeypatch.setattr(initial, "probe", recorded)
    fused(stocked, quick, tmp_path, "pairs", encoding=encoding)
    # The width of the backbone, at first with the units of two sites; a siamese head reads u, v and |u - v|.
    assert set(read) == ({96, 32} if encoding == "cross" else {288, 96})


def test_unasked_those_that_help_are_fused_each_with_its_gate(
    stocked: Workspace, quick: Quick, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = fuse("films", quick("fusion", epochs=1), replace(stocked, reports=tmp_path), seed=1).record
    assert [source.task for source in record.sources] == ["meals"]
    assert record.gates == {"meals": 1.0}
    assert record.recipe.gated.start == "probe"
    assert "films: gates start at meals 1; variance explained: none " in capsys.readouterr().err
    manifest = stocked.store.find(record.run).manifest
    assert [source.task for source in manifest.sources] == ["meals"]


def test_beside_a_warm_start_sources_join_a_model_that_is_there(
    stocked: Workspace, quick: Quick, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = quick("fusion", epochs=1, own_adapter="warm", gate_start="probe", bottleneck=32)
    record = fuse("films", recipe, replace(stocked, reports=tmp_path), seed=1).record
    assert record.anchor == "meals"
    assert "; variance explained: the warm start " in capsys.readouterr().err


def test_the_targets_own_adapter_with_a_gate_is_chosen_as_the_others_are(
    stocked: Workspace, quick: Quick, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Here it is left out: meals explains more, and too much has to be gained beside it."""
    monkeypatch.setattr(initial, "LEAST_GAIN", 1.0)
    recipe = quick("fusion", epochs=1, own_adapter="none", gate_start="probe")
    record = fuse("films", recipe, replace(stocked, reports=tmp_path), seed=1).record
    assert record.gates == {"meals": 1.0}
    assert [source.task for source in record.sources] == ["meals"]
    kept = stocked.store.find(record.run)
    assert "films" not in restore(kept, stocked.task("films"), stocked).backbone.adapters_config


@pytest.mark.parametrize("sources", [None, "best:2"])
def test_gates_are_tried_for_no_more_sources_than_may_be(
    sources: str | None,
    stocked: Workspace,
    quick: Quick,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(initial, "MOST_SOURCES", 1)
    recipe = quick("fusion", epochs=1, gate_start="probe")
    record = fuse("films", recipe, replace(stocked, reports=tmp_path), seed=1, sources=sources).record
    assert [source.task for source in record.sources] == ["meals"]
    printed = capsys.readouterr().err
    assert "explain, by source on 96 training rows: meals " in printed and "; chosen: meals\n" in printed
    assert "films: gates start at meals 1; " in printed


@pytest.mark.parametrize("damaged", [False, True])
def test_a_run_resumes_with_what_it_chose(
    damaged: bool, stocked: Workspace, quick: Quick, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As on another machine, where the probes might prefer another source; unless what it chose cannot be read."""
    place, recipe = replace(stocked, reports=tmp_path), quick("fusion", epochs=1)
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(training_run, "fit", interrupted)
        fuse("films", recipe, place, seed=3)
    (file,) = tmp_path.glob("runs/*/checkpoint/choice.json")
    if damaged:
        file.write_text(file.read_text()[:-20])
    monkeypatch.setattr(initial.Chooser, "choose_gates", lambda *_: {"coins": 1.0})
    record = fuse("films", recipe, place, seed=3).record
    assert record.gates == ({"coins": 1.0} if damaged else {"meals": 1.0})
    assert [source.task for source in record.sources] == list(record.gates)
    assert not file.exists()


def test_of_several_processes_the_main_one_writes_what_was_chosen(
    stocked: Workspace, quick: Quick, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(training_run, "fit", interrupted)
    monkeypatch.setattr(initial, "is_main_process", lambda: False)
    with pytest.raises(KeyboardInterrupt):
        fuse("films", quick("fusion", epochs=1), replace(stocked, reports=tmp_path), seed=3)
    assert not list(tmp_path.glob("runs/*/checkpoint/choice.json"))


def interrupted(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("sources", "limit", "message"),
    [
        ("best", None, "--sources best: say how many to choose, such as --sources best:8"),
        ("best:0", None, "--sources best:0: say how many"),
        ("best:1", 10, "best_sources 1 (--sources best:1): 10 training rows of films are too few to rank sources by"),
    ],
)
def test_what_cannot_be_chosen_is_refused(
    sources: str, limit: int | None, message: str, stocked: Workspace, quick: Quick
) -> None:
    with pytest.raises(PipelineError) as raised:
        fuse("films", quick("fusion", fusion="gated", epochs=1), stocked, seed=1, limit=limit, sources=sources)
    assert str(raised.value).startswith(message)
