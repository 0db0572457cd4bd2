"""Weights of runs that are not those of their recipe, though their sha256 is right: refused in one line."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from pipeline.records.run_record import RunRecord
from pipeline.runs.build import build_for_training, restore_weights
from pipeline.runs.workspace import Part, RunRequest, Workspace
from pipeline.settings.recipe import Recipe
from pipeline.settings.resolve import resolve
from pipeline.system.atomic import sha256_file
from pipeline.system.errors import PipelineError
from tests.poison import POISONS, WORDS, rewritten
from tests.runs import joint_run, single_run


@pytest.fixture(scope="module")
def runs(
    backbone_folder: Path, data_folder: Path, tmp_path_factory: pytest.TempPathFactory, quick: Callable[..., Recipe]
) -> tuple[Workspace, dict[str, RunRecord]]:
    folder = tmp_path_factory.mktemp("runs")
    workspace = Workspace(str(backbone_folder), data_folder, folder / "store", folder / "reports")

    def run(kind: str, trainable: str, start: RunRecord | None = None, **settings: Any) -> RunRecord:
        recipe = quick(trainable, epochs=1, min_steps=1, **settings)
        return single_run(workspace, kind, "films", recipe, seed=1, limit=16, start=start, keep_weights=True).get()

    full = run("full", "full", freeze_embeddings=True)
    both = {name: quick("adapter", epochs=1, adapter="pal", pal_size=12, pal_heads=3) for name in ("films", "meals")}
    joint = joint_run(workspace, list(both), both, seed=1, limits=dict.fromkeys(both, 16), keep_weights=True).get()
    return workspace, {
        "full": full,
        "frozen": run("frozen", "head"),
        "with modules": run("full", "full+adapter"),
        "two encoders": run("full", "full", second_encoder="static"),
        "sequential": run("sequential", "full", start=full, freeze_embeddings=True),
        "joint": joint,
    }


def built(record: RunRecord, workspace: Workspace) -> Any:
    model = restore_weights(record, [workspace.task("films")], workspace)
    return model if record.kind == "multitask" else model.of("films")


@pytest.mark.parametrize("kind", ["full", "frozen", "with modules", "two encoders", "sequential", "joint"])
def test_kept_weights_are_read_whole_and_nothing_else_is(kind: str, runs: Any, tmp_path: Path) -> None:
    workspace, records = runs
    record = records[kind]
    file = workspace.ledger.weights_file(record.run)
    kept = file.read_bytes()
    model = dict(built(record, workspace).named_parameters())
    for name, tensor in load_file(file).items():
        assert torch.equal(model[name], tensor), name
    frozen = rewritten(lambda tensors: {**tensors, f"backbone.{WORDS}": torch.zeros(28, 32)})
    try:
        for poison, change in {**POISONS, "frozen tensor": frozen}.items():
            if (poison == "another task's" and kind != "joint") or (poison == "frozen tensor" and kind != "full"):
                continue
            file.write_bytes(kept)
            change(file)
            changed = record.model_copy(update={"weights_sha256": sha256_file(file)})
            with pytest.raises(PipelineError) as refused:
                built(changed, workspace)
            assert str(refused.value).startswith(f"{file}: "), poison
            assert str(refused.value).endswith(f"delete {file.parent}, and the run is trained again"), poison
            assert str(refused.value).isprintable()
    finally:
        file.write_bytes(kept)


@pytest.mark.parametrize("poison", ["a tensor missing", "transposed", "one number", "zero tensors", "NaN", "truncated"])
def test_fine_tuning_does_not_go_on_from_poisoned_weights(poison: str, runs: Any, quick: Callable[..., Recipe]) -> None:
    workspace, records = runs
    file = workspace.ledger.weights_file(records["full"].run)
    kept = file.read_bytes()
    try:
        POISONS[poison](file)
        start = records["full"].model_copy(update={"weights_sha256": sha256_file(file)})
        recipe = resolve(quick("full"), workspace.task("meals"), "fp32")
        request = RunRequest.single("sequential", workspace.task("meals"), recipe, seed=1, start=start)
        parts = {"meals": Part(workspace.task("meals"), recipe)}
        with pytest.raises(PipelineError, match="the run is trained again"):
            build_for_training(request, parts, workspace.backbone, workspace.ledger)
    finally:
        file.write_bytes(kept)
