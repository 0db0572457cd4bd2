"""LP-FT: full fine-tuning that starts with the head of a linear probe."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from pipeline.records.run_record import RunRecord
from pipeline.runs.build import build_for_training
from pipeline.runs.training_run import TrainingRun
from pipeline.runs.workspace import RunRequest, Workspace
from pipeline.settings.parse_study import parse_study
from pipeline.settings.study import Study
from pipeline.system.errors import PipelineError
from stages.compare.check import checked
from stages.compare.compare import compare
from tests.pipeline.runs.test_module_kinds import agree

QUICK: dict[str, Any] = {"epochs": 2, "batch_size": 16, "learning_rate": 5e-3}
LP_FT: dict[str, Any] = {"method": "full", "of": "frozen"}


def study(methods: tuple[str, ...] = ("full", "lp-ft"), targets: tuple[str, ...] = ("films",), **rows: Any) -> Study:
    values = {"name": "probed", "methods": methods, "targets": targets, "seeds": [0], "recipe": QUICK}
    return parse_study({**values, "reference": "lp-ft", "rows": {"lp-ft": LP_FT, **rows}}, "test")


def run_of(workspace: Workspace, result: Any, method: str) -> RunRecord:
    (entry,) = [entry for entry in result.entries if entry.method == method and entry.target == "films"]
    record = workspace.ledger.find(entry.run or entry.error)
    assert record is not None, entry.error
    return record


def probe_of(workspace: Workspace, record: RunRecord) -> RunRecord:
    (source,) = record.sources
    return workspace.ledger.find(source.run)


def test_it_starts_with_the_probes_head_on_the_pretrained_encoder(
    workspace: Workspace, data_folder: Path, tmp_path: Path
) -> None:
    result, _ = compare(study(), workspace, keep_weights=True)
    record, plain = run_of(workspace, result, "lp-ft"), run_of(workspace, result, "full")
    probe = probe_of(workspace, record)
    assert (probe.kind, probe.task, probe.sources) == ("frozen", "films", ())
    assert record.run != plain.run
    assert plain.sources == ()
    recipe = study().recipe_for("lp-ft", "films")
    run = TrainingRun(RunRequest.single("full", workspace.task("films"), recipe, 0, start=probe), workspace)
    assert run.name == record.run
    model = build_for_training(run.request, run.parts, workspace.backbone, workspace.ledger).model.of("films")
    kept = load_file(workspace.ledger.weights_file(probe.run))
    assert {f"head.{name}" for name, _ in model.head.named_parameters()} == kept.keys()
    assert all(torch.equal(parameter, kept[f"head.{name}"]) for name, parameter in model.head.named_parameters())
    workspace.backbone.check_unchanged(model.backbone)
    assert all(parameter.requires_grad for parameter in model.parameters())
    (cost,) = (entry.total_seconds for entry in result.entries if entry.method == "lp-ft")
    assert cost == pytest.approx(record.cost.seconds + probe.cost.seconds)
    agree(dataclasses.replace(workspace), "films", record.run, data_folder, tmp_path)


def test_sequential_tuning_may_go_on_from_it(workspace: Workspace) -> None:
    result, _ = compare(
        study(("lp-ft", "on"), ("films", "pairs"), on={"method": "sequential", "of": "lp-ft"}), workspace
    )
    assert [entry.error for entry in result.entries] == [None] * 4
    (entry,) = [entry for entry in result.entries if entry.method == "on:pairs"]
    record = workspace.ledger.find(entry.run or "")
    assert set(record.scores) == {"films", "pairs"}


@pytest.mark.parametrize("recipe", [{"head": "mlp"}, {"pooling": "cls"}, {"second_encoder": "static"}], ids=str)
def test_a_head_that_does_not_fit_is_told_before_training(recipe: dict[str, Any], workspace: Workspace) -> None:
    with pytest.raises(PipelineError, match="lp-ft on films: it cannot start with the head of row frozen"):
        checked(study(**{"lp-ft": {**LP_FT, "recipe": recipe}}), workspace)
