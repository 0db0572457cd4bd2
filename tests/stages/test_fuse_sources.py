"""fuse --sources trains the adapters that the store lacks, as extract does, and then the fusion."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from pipeline.records.run_record import RunRecord
from pipeline.runs.sources import Fusion
from pipeline.runs.training_run import TrainingRun
from pipeline.runs.workspace import Workspace
from pipeline.settings.recipe import Recipe
from pipeline.system.errors import PipelineError
from stages.extract import extract
from stages.fuse import fuse
from tests.nano import save_backbone

Quick = Callable[..., Recipe]


def trained(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is trained from now on, as ``adapter films``, in order."""
    found: list[str] = []
    original = TrainingRun.train

    def train(run: TrainingRun) -> RunRecord:
        found.append(f"{run.request.kind} {run.task.name}")
        return original(run)

    monkeypatch.setattr(TrainingRun, "train", train)
    return found


def adapters(workspace: Workspace) -> dict[str, str]:
    found = [artifact.manifest for artifact in workspace.store.artifacts() if artifact.manifest.kind == "adapter"]
    return {manifest.task: manifest.run for manifest in found}


def test_what_is_missing_is_trained_as_extract_trains_it(
    workspace: Workspace,
    quick: Quick,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Any,
) -> None:
    options = {"epochs": 1, "fusion": "anchored", "pooling": "cls"}
    there = extract("meals", quick("adapter", epochs=1), workspace, seed=3).record
    order = trained(workspace, monkeypatch)
    capsys.readouterr()
    record = fuse("films", quick("fusion", **options), workspace, seed=1, limit=50, sources="pairs,meals").record
    assert order == ["adapter pairs", "adapter films", "fusion films"]
    told = capsys.readouterr().err
    assert "lacks them: adapters of pairs (50 rows), films (50 rows)\n" in told
    assert "adapter of films: dev accuracy " in told
    assert [source.task for source in record.sources] == ["films", "meals", "pairs"]
    runs = adapters(workspace)
    assert runs["meals"] == there.run
    # The same runs as those of extract with the same options.
    other = dataclasses.replace(workspace, store_root=tmp_path / "other", reports=tmp_path / "elsewhere")
    recipe = quick("adapter", epochs=1, pooling="cls")
    alone = {task: extract(task, recipe, other, seed=1, limit=50).record.run for task in ("films", "pairs")}
    assert {task: runs[task] for task in alone} == alone
    # Once more: all is there.
    order.clear()
    assert (
        fuse("films", quick("fusion", **options), workspace, seed=1, limit=50, sources="pairs,meals").record == record
    )
    assert order == []


@pytest.mark.parametrize("limit", [50, None])
def test_a_target_may_have_fewer_rows_than_its_sources(
    limit: int | None, workspace: Workspace, quick: Quick, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = quick("fusion", epochs=1, fusion="anchored", pooling="cls")
    record = fuse("films", recipe, workspace, seed=1, limit=limit, target_limit=20, sources="meals").record
    # Rows of meals with a text of films' dev are left out.
    rows = len(workspace.apart_from(["films"]).splits.of(workspace.task("meals"), limit, 1).train)
    assert rows == 50 if limit else rows < 96
    assert f"adapters of meals ({rows} rows), films (20 rows)\n" in capsys.readouterr().err
    assert record.score("films").train_rows == 20
    # The rows that its own adapter was trained on.
    again = fuse("films", recipe, workspace, seed=1, sources="meals").record
    assert again == record


def test_an_adapter_that_does_not_fit_is_trained_beside_it_and_the_reason_is_said(
    workspace: Workspace,
    quick: Quick,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Any,
) -> None:
    old = extract("meals", quick("adapter", epochs=1), workspace, seed=1).record
    other = dataclasses.replace(workspace, backbone_name=str(save_backbone(tmp_path / "other", seed=7)))
    order = trained(workspace, monkeypatch)
    fuse("films", quick("fusion", fusion="gated", epochs=1), other, seed=1, sources="meals")
    assert order == ["adapter meals", "fusion films"]
    assert f" rows; adapter {old.run} was trained on another backbone" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("sources", "settings", "message"),
    [
        ("meals,pairs@aaaaaaaaaaaa", {}, "pairs: no adapter aaaaaaaaaaaa in"),
        ("meals@,pairs", {}, "'meals@': name a run after @, or leave @ out"),
        ("films", {}, "--sources films: that is the target itself: name other tasks"),
        ("meals", {"train_layernorm": True}, "meals: an adapter of this recipe trained its own LayerNorms"),
        ("meals", {"head": "cosine"}, "head 'cosine' compares two sentences"),
        ("meals", {"adapter": "lora"}, "adapter 'lora' cannot be fused"),
    ],
)
def test_what_cannot_be_is_known_before_anything_is_trained(
    sources: str, settings: dict[str, Any], message: str, workspace: Workspace, quick: Quick, monkeypatch: Any
) -> None:
    monkeypatch.setattr(TrainingRun, "train", lambda run: pytest.fail("trained"))
    with pytest.raises(PipelineError) as raised:
        fuse("films", quick("fusion", **settings), workspace, seed=1, sources=sources)
    assert message in str(raised.value)


def test_how_the_target_is_predicted_is_not_carried_over_to_its_sources(workspace: Workspace, quick: Quick) -> None:
    recipe = quick(
        "fusion", head="difference-mlp", score_loss="raw", max_length=20, class_weights="balanced", min_steps=7
    )
    fusion = Fusion(workspace.task("pairs"), recipe, workspace)
    films, pairs = (fusion.adapter_recipe(workspace.task(name)) for name in ("films", "pairs"))
    assert (films.head, pairs.head) == (None, "difference-mlp")
    assert (films.score_loss, pairs.score_loss) == ("normalised", "raw")
    for own in (films, pairs):
        assert (own.trainable, own.encoding, own.max_length, own.min_steps) == ("adapter", "siamese", 20, 7)
    assert films.class_weights == "balanced"
