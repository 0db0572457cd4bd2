"""A model that starts as another's begins with a head of its own draw, which says nothing of what the other learned."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from pipeline.records.run_record import RunRecord
from pipeline.runs.build import build_for_training
from pipeline.runs.training_run import TrainingRun
from pipeline.runs.workspace import RunRequest, Workspace, resolve_parts
from pipeline.settings.recipe import Recipe
from stages.extract import extract
from stages.fuse import fuse

pytestmark = pytest.mark.usefixtures("trained_once")

Quick = Callable[..., Recipe]
STILL: dict[str, Any] = {"epochs": 1, "learning_rate": 1e-30, "weight_decay": 0}
"""The head of the artifact is the one of the first step."""


@pytest.fixture(autouse=True)
def starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever may start as another's does."""
    monkeypatch.setattr("pipeline.runs.initial.most_explaining", lambda probes, *_: next(iter(probes)))


def head(record: RunRecord) -> torch.Tensor:
    (tensor,) = [t for name, t in load_file(Path(record.artifact) / "head.safetensors").items() if t.ndim == 2]
    return tensor


def first_head(workspace: Workspace, task: str, quick: Quick, seed: int, **request: Any) -> torch.Tensor:
    """Of full fine-tuning, before the first step."""
    asked = RunRequest.single("sequential" if request else "full", workspace.task(task), quick("full"), seed, **request)
    parts = resolve_parts(asked, workspace)
    built = build_for_training(asked, parts, workspace.backbone, workspace.ledger)
    return built.model.of(task).head.out.weight.detach()


def likeness(one: torch.Tensor, other: torch.Tensor) -> float:
    """Of the most alike rows: the absolute cosine."""
    return float(torch.nn.functional.cosine_similarity(one[:, None], other[None], dim=-1).abs().max())


def test_by_the_seed_alone_two_tasks_have_one_head(workspace: Workspace, quick: Quick) -> None:
    """Why it is drawn anew: fresh models of one seed agree, even where one has two outputs and the other one."""
    films, pairs = (first_head(workspace, task, quick, seed=3) for task in ("films", "pairs"))
    assert likeness(films, pairs) == pytest.approx(1)


def test_a_warm_started_adapter_and_fusion_draw_another(workspace: Workspace, quick: Quick) -> None:
    source = extract("meals", quick("adapter", **STILL), workspace, seed=0).record
    fresh = extract("films", quick("adapter", **STILL), workspace, seed=0).record
    assert likeness(head(source), head(fresh)) == pytest.approx(1)
    warm = extract("films", quick("adapter", **STILL), workspace, seed=0, start_from="meals").record
    assert likeness(head(source), head(warm)) < 0.9
    # One draw for a task and a seed, whatever starts.
    recipe = quick("fusion", **STILL, own_adapter="warm")
    fusion = fuse("films", recipe, workspace, seed=0, sources="meals").record
    assert torch.equal(head(fusion), head(warm))
    other = extract("films", quick("adapter", **STILL), workspace, seed=1, start_from="meals").record
    assert likeness(head(warm), head(other)) < 0.9


def test_a_fusion_with_closed_gates_begins_as_the_warm_started_adapter(workspace: Workspace, quick: Quick) -> None:
    """They are one model then. Where it is the draw of a head that tells them apart, a comparison measures that."""
    extract("meals", quick("adapter", epochs=4, learning_rate=1e-2), workspace, seed=0)
    warm = extract("films", quick("adapter", **STILL), workspace, seed=0, start_from="meals").record
    recipe = quick("fusion", **STILL, own_adapter="warm", gate_start=0.0)
    fusion = fuse("films", recipe, workspace, seed=0, sources="meals").record
    tables = [workspace.ledger.predictions(each.run, "films", "dev") for each in (warm, fusion)]
    columns = [name for name in tables[0] if name.startswith("probability")]
    assert tables[0][columns].to_numpy() == pytest.approx(tables[1][columns].to_numpy(), abs=1e-5)


def test_sequential_tuning_draws_another(workspace: Workspace, quick: Quick) -> None:
    request = RunRequest.single("full", workspace.task("meals"), quick("full", epochs=1), 0, keep_weights=True)
    start = TrainingRun(request, workspace).get()
    heads = [first_head(workspace, task, quick, seed=0, start=start) for task in ("films", "pairs")]
    source = first_head(workspace, "meals", quick, seed=0)
    assert max(likeness(source, each) for each in heads) < 0.9
    assert likeness(*heads) < 0.9
    assert torch.equal(first_head(workspace, "films", quick, seed=0, start=start), heads[0])
