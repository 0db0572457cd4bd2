"""BERT's pretrained pooler, a tuned threshold of a cosine, and scores on training rows, in runs from end to end."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BertModel

from pipeline.data.labels import Prediction
from pipeline.models.backbone import Backbone, open_backbone
from pipeline.models.transfer_model import CosineHead, TransferModel, build_head
from pipeline.runs.build import restore_run
from pipeline.runs.scoring import Scoring
from pipeline.runs.training_run import TrainingRun
from pipeline.runs.workspace import Workspace
from pipeline.settings.recipe import Recipe
from pipeline.settings.study import ScoredRows
from pipeline.stats.metrics import METRICS, best_threshold
from pipeline.system.errors import PipelineError
from pipeline.training.devices import make_accelerator
from tests.nano import save_backbone
from tests.runs import joint_run, single_run

Quick = Callable[..., Recipe]


def test_the_pooler_gives_what_bert_gives(backbone: Backbone, backbone_folder: Path) -> None:
    """Also with the last layer computed for the first token alone, and on top of what frozen layers gave before."""
    pooled = backbone.with_pooler()
    stock = BertModel.from_pretrained(backbone_folder).eval()
    model = TransferModel(pooled.load(), build_head("linear", 32, 2, 1, 0.0), "cross", "pooler").eval()
    inputs = {"input_ids": torch.randint(5, 20, (3, 6)), "attention_mask": torch.ones(3, 6, dtype=torch.long)}
    torch.testing.assert_close(model.encode(**inputs), stock(**inputs).pooler_output)
    model.backbone.embeddings.requires_grad_(False)
    torch.testing.assert_close(model.encode(**inputs, known=model.prefix_output(inputs)), stock(**inputs).pooler_output)
    width = backbone.hidden_size
    assert pooled.parameters - backbone.parameters == width * (width + 1)


def test_the_pooler_is_part_of_what_identifies_a_model_only_where_it_is_read(backbone: Backbone) -> None:
    pooled = backbone.with_pooler()
    assert pooled.identity == {**backbone.identity, "pooler": pooled.pooler}
    encoder = pooled.load()
    pooled.check_unchanged(encoder)
    with torch.no_grad():
        encoder.pooler.dense.bias += 1
    with pytest.raises(RuntimeError, match="changed"):
        pooled.check_unchanged(encoder)


@pytest.mark.parametrize("family", ["distilbert", "bert"])
def test_a_backbone_without_a_pooler_is_refused_in_one_line(family: str, tmp_path: Path) -> None:
    folder = save_backbone(tmp_path, family)
    weights = load_file(folder / "model.safetensors")
    kept = {name: tensor for name, tensor in weights.items() if not name.startswith("pooler.")}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(PipelineError, match='no pretrained pooler: use pooling = "cls"'):
        open_backbone(str(folder)).with_pooler()


@pytest.mark.parametrize(
    ("kind", "settings"), [("full", {}), ("frozen", {"trainable": "head"}), ("adapter", {"trainable": "adapter"})]
)
def test_a_kept_model_pools_as_it_was_trained(kind: str, settings: Any, workspace: Workspace, quick: Quick) -> None:
    recipe = quick(**{"trainable": "full", "epochs": 1, "pooling": "pooler", **settings})
    run = single_run(workspace, kind, "films", recipe, seed=1)
    record = run.get()
    scored = _scored_again(run, "films")
    assert scored == pytest.approx(record.dev, abs=1e-9)
    pretrained = run.backbone.load().pooler.dense.weight
    model = restore_run(record, workspace.task("films"), workspace)
    assert torch.equal(model.backbone.pooler.dense.weight, pretrained) == (kind != "full")
    cls = single_run(workspace, kind, "films", recipe.changed({"pooling": "cls"}), seed=1)
    assert "pooler" not in cls.identity["backbone"]
    assert "pooler" in run.identity["backbone"]


def test_tuning_on_from_a_model_without_its_pooler_is_refused(workspace: Workspace, quick: Quick) -> None:
    before = single_run(workspace, "full", "films", quick("full", epochs=1, pooling="cls"), seed=1).get()
    after = single_run(
        workspace, "sequential", "meals", quick("full", epochs=1, pooling="pooler"), seed=1, start=before
    )
    with pytest.raises(PipelineError, match="only one of the two trains the pooler"):
        after.get()


def _scored_again(run: TrainingRun, task: str) -> float:
    """The dev score of the run's kept model."""
    scoring, prediction = _predicted_again(run, task)
    return scoring.value(prediction)


def _predicted_again(run: TrainingRun, task: str) -> tuple[Scoring, Prediction]:
    """What the run's kept model says of the dev rows."""
    workspace, record, part = run.workspace, run.get(), run.parts[task]
    scoring = Scoring(part.task, run.data[task].dev, part.recipe, run.backbone, make_accelerator("fp32"))
    return scoring, scoring.predict(restore_run(record, part.task, workspace))


@pytest.mark.parametrize("trainable", ["full", "head"])
def test_a_tuned_threshold_scores_best_on_the_rows_that_choose_and_stays_with_the_model(
    trainable: str, workspace: Workspace, same: Path, quick: Quick
) -> None:
    """Raw cosines are nearly all positive (Xu 2024): with threshold 0 every pair is a paraphrase."""
    workspace = dataclasses.replace(workspace, data=same)
    kind = "frozen" if trainable == "head" else "full"
    recipe = quick(trainable, epochs=2, head="cosine")
    zero = single_run(workspace, kind, "same", recipe, seed=1)
    tuned = single_run(workspace, kind, "same", recipe.changed({"cosine_threshold": "tuned"}), seed=1)
    at_zero, record = zero.get(), tuned.get()
    assert record.dev > at_zero.dev
    assert tuned.identity["tasks"]["same"]["recipe"]["cosine_threshold"] == "tuned"
    assert _scored_again(tuned, "same") == record.dev
    # Of the kept epoch, not of the last one: no other threshold divides its cosines better.
    table = workspace.ledger.predictions(tuned.name)
    labels, shifted = table["label"].to_numpy(), 2 * table["probability_1"].to_numpy() - 1
    best = shifted > best_threshold(shifted, labels, "accuracy")
    assert METRICS["accuracy"].score(best.astype(int), labels) == pytest.approx(record.dev)
    assert trainable == "head" or record.best_epoch < recipe.epochs, "the kept epoch is the last one"
    again = _predicted_again(tuned, "same")[1].probabilities
    assert again is not None and again[:, 1] == pytest.approx(table["probability_1"].to_numpy(), abs=1e-5)


def test_the_start_is_scored_with_its_best_threshold_too(workspace: Workspace, same: Path, quick: Quick) -> None:
    """Nothing trains, so the start is what is kept."""
    workspace = dataclasses.replace(workspace, data=same, scoring=ScoredRows(rows="half"))
    recipe = quick("head", head="cosine", cosine_threshold="tuned", score_start=True)
    score = single_run(workspace, "frozen", "same", recipe, seed=1).get().scores["same"]
    assert score.test is not None and score.start == score.test


def test_a_cosine_trains_without_its_threshold() -> None:
    head = CosineHead(tuned_threshold=True)
    head.threshold.fill_(0.5)
    u, v = torch.tensor([[3.0, 4.0]]), torch.tensor([[4.0, 3.0]])
    assert head.train()(u, v).item() == pytest.approx(0.96)
    assert head.eval()(u, v).item() == pytest.approx(0.46)


@pytest.mark.parametrize("tasks", [["films"], ["films", "pairs"]])
def test_training_rows_are_scored_in_the_curve(tasks: list[str], workspace: Workspace, quick: Quick) -> None:
    recipes = {task: quick("full", epochs=2, score_train=True) for task in tasks}
    limits = dict.fromkeys(tasks, 40)
    plain = {task: recipe.changed({"score_train": False}) for task, recipe in recipes.items()}
    run, without = (joint_run(workspace, tasks, each, seed=1, limits=limits) for each in (recipes, plain))
    curve, bare = (workspace.ledger.curve(each.get().run) for each in (run, without))
    for task in tasks:
        assert ((curve[f"train_{task}"] >= -1) & (curve[f"train_{task}"] <= 1)).all()
    # It changes no step.
    np.testing.assert_array_equal(curve["dev"], bare["dev"])
    assert not any(name.startswith("train_") for name in bare)
    films = run.data["films"]
    if tasks == ["films"]:
        scoring = Scoring(run.task, films.train, run.recipe, run.backbone, make_accelerator("fp32"))
        kept = joint_run(workspace, tasks, recipes, seed=1, limits=limits, keep_weights=True)
        model = restore_run(kept.get(force=True), run.task, workspace)
        at_best = curve.set_index("epoch")["train_films"][kept.get().best_epoch]
        assert scoring.value(scoring.predict(model)) == pytest.approx(at_best)
