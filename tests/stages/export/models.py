"""Models with random weights to export, and what they answer."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from pipeline.data.tasks import Task
from pipeline.methods.registry import add_fusion, add_modules
from pipeline.models.backbone import Backbone
from pipeline.records.store import Artifact, SourceRun, Store
from pipeline.runs.build import assemble, modules_of
from pipeline.runs.outcome import save_artifact
from pipeline.runs.scoring import splits_of
from pipeline.settings.recipe import Recipe
from pipeline.settings.resolve import resolve
from pipeline.training.devices import OneDevice
from pipeline.training.objectives import mean_outputs, objective_of
from stages.export.exported import Texts, Trained
from tests.nano import SIZES, VOCABULARY
from tests.pipeline.methods.adapted import move
from tests.pipeline.records.artifacts import manifest

SOURCES = ("meals", "films")


def task_of(kind: str) -> Task:
    """A task of "classes" (films) or "scores" (pairs), or of two classes of pairs ("twins")."""
    text = {"films": ("text_a",)}.get(kind, ("text_a", "text_b"))
    shape: dict[str, Any] = (
        {"kind": "score", "range": (0.0, 5.0), "metric": "pearson"}
        if kind == "pairs"
        else {"kind": "classes", "classes": ("bad", "good"), "metric": "accuracy"}
    )
    return Task(name=kind, text=text, label="label", max_length=24, **shape)


def random_model(backbone: Backbone, task: Task, root: Path, width: int = 8, **settings: Any) -> Trained:
    """A model with random weights; an adapter or fusion is also in the store ``root``, with what it fuses.

    ``width`` is that of the adapters that are fused.
    """
    recipe = _recipe(backbone, task, settings)
    if recipe.trainable in ("adapter", "fusion"):
        return _kept(backbone, task, recipe, Store(root), width)
    second = backbone.load() if recipe.pretrained.second_encoder != "none" else None
    model = assemble(backbone.load(), recipe, task, second)
    move(model, 1)
    return Trained(task, recipe, model.requires_grad_(False).eval(), backbone, "f" * 12, "full")


def _recipe(backbone: Backbone, task: Task, settings: dict[str, Any]) -> Recipe:
    recipe = Recipe.parse({**SIZES, "fusion_rank": 2, **settings}, "test")
    return resolve(recipe, task, "fp32", backbone.max_length, backbone.layers)


def _kept(backbone: Backbone, task: Task, recipe: Recipe, store: Store, width: int = 8) -> Trained:
    adapters: list[Artifact] = []
    encoder = backbone.load()
    if recipe.trainable == "adapter":
        add_modules(encoder, [task.name], recipe)
    else:
        for name in SOURCES:
            of = recipe.adapter
            settings = {"trainable": "adapter", "adapter": of.kind, "drop_layers": of.drop_layers, "bottleneck": width}
            source = task_of("films").model_copy(update={"name": name})
            kept = _kept(backbone, source, _recipe(backbone, source, settings), store)
            adapters.append(kept.artifact)
        if not recipe.form.fuses_own:
            adapters = [each for each in adapters if each.manifest.task != task.name]
        add_fusion(encoder, {each.manifest.task: modules_of(each) for each in adapters}, recipe, task.name)
    model = assemble(encoder, recipe, task)
    move(model, sum(task.name.encode()))  # a source is unlike the others
    sources = (SourceRun(task=a.manifest.task, run=a.manifest.run, digest=a.manifest.digest) for a in adapters)
    described = manifest(
        f"{len(list(store.root.rglob('manifest.json'))):012x}", task.name, recipe=recipe, pair=task.is_pair,
        kind="adapter" if recipe.trainable == "adapter" else "fusion", meaning=task.meaning, metric=task.metric,
        backbone=backbone.name, backbone_weights=backbone.weights_hash, sources=tuple(sources),
    )  # fmt: skip
    artifact = save_artifact(store, described, model)
    kind = artifact.manifest.kind
    model.requires_grad_(False).eval()
    return Trained(task, recipe, model, backbone, artifact.manifest.run, kind, 1.0, artifact, tuple(adapters))


def texts_for(trained: Trained, rows: int = 9) -> list[tuple[str, ...]]:
    """Texts of one word, of more than the model reads, and between."""
    generator = np.random.default_rng(0)
    lengths = [1, 40, *generator.integers(2, 30, rows * 2)]

    def text(number: int) -> str:
        return " ".join(generator.choice(VOCABULARY[5:], lengths[number]))

    columns = len(trained.task.text)
    return [tuple(text(row + column) for column in range(columns)) for row in range(rows)]


def answers_of(trained: Trained, texts: Texts) -> dict[str, np.ndarray]:
    """What ``predict`` computes, from the same parts."""
    columns = ["text_a", "text_b"][: len(trained.task.text)]
    rows = pd.DataFrame(texts, columns=columns, dtype=object)
    rows.insert(0, "id", [str(number) for number in range(len(rows))])
    average = trained.recipe.pairs.average_orders
    outputs = mean_outputs(
        trained.model,
        splits_of(rows, trained.recipe, trained.tokenizer, average, False),
        batch_size=4,
        pad_token_id=trained.tokenizer.pad_token_id,
        accelerator=OneDevice(torch.device("cpu"), None),
    )
    prediction = objective_of(trained.task, trained.recipe).predict(outputs)
    answer = prediction.values if prediction.probabilities is None else prediction.probabilities
    return {"outputs": outputs.numpy(), trained.answer: answer}


def assert_equal_answers(found: dict[str, np.ndarray], expected: dict[str, np.ndarray], names: Sequence[str]) -> None:
    assert set(found) == set(names)
    for name in names:
        np.testing.assert_allclose(found[name], expected[name], rtol=0, atol=1e-4)
        assert np.ptp(expected[name]) > 1e-2  # equal because they agree, not because nothing differs
