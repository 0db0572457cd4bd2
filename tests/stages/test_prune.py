"""A pruned fusion is an artifact of its own, with its own score, that predict uses like any other."""

import dataclasses
import json
import re
from pathlib import Path

import pandas as pd
import pytest

from pipeline.cli.printing import print_run
from pipeline.records.run_record import RunRecord
from pipeline.records.store import MANIFEST
from pipeline.runs.workspace import Workspace
from pipeline.system.errors import PipelineError
from stages.extract import extract
from stages.fuse import fuse
from stages.prune import prune, shares_of
from tests.pipeline.runs.test_module_kinds import agree

pytestmark = pytest.mark.usefixtures("trained_once")


@pytest.fixture
def fused(workspace, quick):
    for task in ("films", "meals", "pairs"):
        extract(task, quick("adapter", learning_rate=5e-2), workspace, seed=1)
    return fuse(
        "films", quick("fusion", fusion="anchored", learning_rate=5e-2, score_start=False), workspace, seed=1
    ).record


def test_a_fusion_keeps_the_sources_it_listens_to(fused, workspace, data_folder, tmp_path: Path, monkeypatch) -> None:
    before = {file.name: file.read_bytes() for file in Path(fused.artifact).iterdir()}
    record = prune("films", workspace, keep=2).record
    (row,) = pd.read_csv(workspace.ledger.folder(record.run) / "curve.csv").to_dict("records")
    shares = {source.task: row[f"share of {source.task}"] for source in fused.sources}
    assert sum(shares.values()) == pytest.approx(1.0)
    assert {source.task for source in record.sources} == set(sorted(shares, key=shares.__getitem__)[1:])
    assert record.cost.trainable_parameters == fused.cost.trainable_parameters - 4  # of its bias, a number a site
    assert record.summary().keys() == fused.summary().keys()
    assert fused.started_from is not None and record.started_from == fused.started_from

    artifact = workspace.store.find(record.run)
    artifact.verify()
    assert (artifact.manifest.pruned_from, artifact.manifest.dev) == (fused.run, record.dev)
    agree(workspace, "films", record.run, data_folder, tmp_path)
    assert {file.name: file.read_bytes() for file in Path(fused.artifact).iterdir()} == before

    monkeypatch.setattr("stages.prune._Pruning.train", lambda _: pytest.fail("made again"))
    assert prune("films", dataclasses.replace(workspace), keep=2).record == record


def test_what_is_kept_and_left_out_is_told_with_its_share(
    fused: RunRecord, workspace: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    record = prune("films", workspace, keep=1).record
    print_run(record, as_json=False, shares=shares_of(record, workspace))
    lines = {line.split("(")[0].rsplit(" ", 2)[0]: line for line in capsys.readouterr().out.splitlines()}
    (kept,) = (source.task for source in record.sources)
    assert kept in lines["keeps"]
    assert all(task in lines["leaves out"] for task in {"films", "meals", "pairs"} - {kept})
    told = re.findall(r"([0-9.]+)%", lines["keeps"] + lines["leaves out"])
    assert sum(map(float, told)) == pytest.approx(100, abs=0.2)
    assert float(told[0]) == max(map(float, told))


def test_down_to_one_source_and_from_a_pruned_one(fused, workspace) -> None:
    two = prune("films", workspace, keep=2).record
    one = prune("films", workspace, keep=1).record
    assert workspace.store.find(one.run).manifest.pruned_from == fused.run
    again = prune("films", workspace, keep=1, using=two.run).record
    assert workspace.store.find(again.run).manifest.pruned_from == two.run
    assert len({fused.run, two.run, one.run, again.run}) == 4


def test_a_better_fusion_of_other_classes_is_not_pruned(fused, workspace, quick) -> None:
    other = fuse("films", quick("fusion", fusion="anchored", epochs=1, score_start=False), workspace, seed=1).record
    file = Path(other.artifact) / MANIFEST
    manifest = json.loads(file.read_text())
    manifest["meaning"]["classes"].reverse()
    file.write_text(json.dumps(manifest | {"dev": 1.0}))
    again = dataclasses.replace(workspace)
    record = prune("films", again, keep=1).record
    assert again.store.find(record.run).manifest.pruned_from == fused.run


def test_the_own_adapter_of_a_gated_fusion_is_not_its_last_source(workspace, quick) -> None:
    for task in ("films", "meals"):
        extract(task, quick("adapter"), workspace, seed=1)
    fuse("films", quick("fusion", fusion="gated", own_adapter="trained"), workspace, seed=1)
    with pytest.raises(PipelineError, match="one source besides the target's own adapter"):
        prune("films", workspace, keep=1)


def test_what_cannot_be_pruned_is_refused(fused, workspace) -> None:
    for keep in (0, 3, -1):
        with pytest.raises(PipelineError, match=f"--keep {keep}: fusion {fused.run} has 3 sources: give 1 to 2"):
            prune("films", workspace, keep=keep)
    with pytest.raises(PipelineError, match="no fusion of 'meals' .*fuse --target meals"):
        prune("meals", workspace, keep=1)
    adapter = fused.sources[0].run
    with pytest.raises(PipelineError, match=f"no fusion {adapter} of 'films'"):
        prune("films", workspace, keep=1, using=adapter)
