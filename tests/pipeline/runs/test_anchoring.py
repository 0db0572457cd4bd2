"""An anchored fusion begins as the adapter that does best on the target's dev, and never ends below it."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd
import pytest

from pipeline.records.run_record import RunRecord
from pipeline.records.store import Artifact
from pipeline.runs.sources import Fusion, parse_sources
from pipeline.runs.training_run import TrainingRun
from pipeline.runs.workspace import Workspace
from pipeline.settings.recipe import Recipe
from stages.extract import extract
from stages.fuse import fuse
from stages.predict import predict

pytestmark = pytest.mark.usefixtures("trained_once")

Quick = Callable[..., Recipe]
LEARNED = {"epochs": 10, "batch_size": 8, "learning_rate": 5e-2, "pooling": "cls"}
FP32: dict[str, Any] = {"batch_size": 64, "precision": "fp32"}
UNTRAINED = {"epochs": 1, "learning_rate": 1e-30, "weight_decay": 0, "pooling": "cls"}


def stage_one(workspace: Workspace, quick: Quick, seed: int = 0, **by_task: dict[str, object]) -> dict[str, RunRecord]:
    return {t: extract(t, quick("adapter", **settings), workspace, seed=seed).record for t, settings in by_task.items()}


def held(workspace: Workspace, quick: Quick, target: str, **settings: object) -> RunRecord:
    """A fusion that does not leave its start."""
    return fuse(target, quick("fusion", **{"fusion": "anchored", **UNTRAINED, **settings}), workspace, seed=0).record


def accuracy_on_films(workspace: Workspace, record: RunRecord) -> float:
    """Of the model of another task with the same labels."""
    rows, output = workspace.data / "films" / "dev.csv", workspace.reports / f"{record.run}.csv"
    predict(record.task, rows, output, dataclasses.replace(workspace), using=record.run, **FP32)
    found = pd.read_csv(output)  # with the labels, which are numbers
    return float((found["prediction"] == found["label"].map({0: "bad", 1: "good"})).mean())


@pytest.mark.parametrize(("films", "meals", "better"), [(0, 1, "films"), (1, 0, "meals"), (2, 0, "meals")])
def test_it_begins_as_the_better_of_those_that_know_its_labels(
    films: int, meals: int, better: str, workspace: Workspace, quick: Quick
) -> None:
    """Untrained adapters and heads, of which the seed makes now one and now the other the better."""
    found = stage_one(workspace, quick, films, films=UNTRAINED) | stage_one(workspace, quick, meals, meals=UNTRAINED)
    scores = {task: accuracy_on_films(workspace, record) for task, record in found.items()}
    assert max(scores, key=scores.__getitem__) == better
    record = held(workspace, quick, "films", anchor=40.0)
    assert (record.anchor, record.dev, record.anchor_candidates) == (better, scores[better], scores)


def test_a_source_that_trained_on_rows_of_the_target_too_may_be_the_anchor(workspace: Workspace, quick: Quick) -> None:
    stage_one(workspace, quick, films=UNTRAINED, meals={**UNTRAINED, "extra": [{"task": "films"}]})
    assert {*held(workspace, quick, "films").anchor_candidates} == {"films", "meals"}


def test_labels_of_another_meaning_are_no_anchor(workspace: Workspace, quick: Quick) -> None:
    stage_one(workspace, quick, films=UNTRAINED, meals=UNTRAINED, pairs=UNTRAINED)
    record = held(workspace, quick, "pairs")
    assert (record.anchor, record.anchor_candidates) == ("pairs", {})


def test_without_the_targets_own_adapter_it_begins_as_the_others_mean(workspace: Workspace, quick: Quick) -> None:
    stage_one(workspace, quick, films=UNTRAINED, meals=UNTRAINED)
    fusion = Fusion(workspace.task("pairs"), quick("fusion", fusion="anchored", **UNTRAINED), workspace)
    chosen = fusion.choose(parse_sources("films,meals", workspace), seed=0)
    record = TrainingRun(fusion.request(chosen, seed=0, limit=None), workspace).get()
    assert record.anchor is None
    weights = workspace.ledger.attention(record.run)
    assert weights["weight"].to_numpy() == pytest.approx(0.5, abs=1e-3)


def test_the_anchor_stays_however_few_sources_are_kept(
    workspace: Workspace, quick: Quick, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The best on dev, and the one that probes of train read best, need not be the same."""
    stage_one(workspace, quick, 1, films=UNTRAINED)
    stage_one(workspace, quick, 0, meals=UNTRAINED, pairs=UNTRAINED)  # of films meals is the better, as above

    def another(_: object, most: int, others: Sequence[Artifact]) -> list[Artifact]:
        return [each for each in others if each.manifest.task == "pairs"][:most]

    monkeypatch.setattr("pipeline.runs.initial.Chooser.best_sources", another)
    record = held(workspace, quick, "films", best_sources=1)
    assert record.anchor == "meals"
    assert {source.task for source in record.sources} == {"films", "meals", "pairs"}


def test_it_never_ends_below_its_start(workspace: Workspace, quick: Quick) -> None:
    """Steps far too large ruin it at once; the start is what is kept, and it is what predicts."""
    own = stage_one(workspace, quick, films=LEARNED, meals=UNTRAINED)["films"]
    recipe = quick("fusion", fusion="anchored", anchor=40.0, learning_rate=30.0, max_grad_norm=1e3, pooling="cls")
    record = fuse("films", recipe, workspace, seed=0).record
    curve = workspace.ledger.curve(record.run)
    assert curve["dev"].iloc[0] == own.dev > curve["dev"].iloc[1:].max()
    assert (record.dev, record.best_epoch) == (own.dev, 0)
    output = workspace.reports / "films.csv"
    predict(
        "films", workspace.data / "films" / "dev.csv", output, dataclasses.replace(workspace), using=record.run, **FP32
    )
    kept = workspace.ledger.predictions(own.run)["prediction"]
    assert pd.read_csv(output)["prediction"].tolist() == kept.map({0: "bad", 1: "good"}).tolist()
