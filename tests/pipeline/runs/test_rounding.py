"""Frozen weights that are rounded once give the numbers of those that autocast rounds in every pass."""

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from pipeline.models.backbone import Backbone
from pipeline.models.tensors import rounded
from pipeline.models.transfer_model import TransferModel, build_head
from pipeline.runs import model as api
from pipeline.runs import training_run
from pipeline.runs.model import load
from pipeline.runs.workspace import Workspace
from pipeline.settings.recipe import Recipe
from stages.extract import extract
from stages.fuse import fuse
from stages.predict import predict
from tests.nano import SIZES
from tests.runs import final_numbers, joint_run, single_run

Quick = Callable[..., Recipe]


@contextmanager
def not_rounded(*_: object) -> Iterator[None]:
    yield


def train(kind: str, workspace: Workspace, quick: Quick, settings: dict[str, Any]) -> None:
    values = {"epochs": 1, "precision": "bf16", **SIZES, **settings}
    if kind == "multitask":
        recipes = dict.fromkeys(("films", "meals"), quick("adapter", **values))
        joint_run(workspace, tuple(recipes), recipes, seed=1, limits=dict.fromkeys(recipes)).get()
    elif kind == "fusion":
        for task in ("films", "meals"):
            extract(task, quick("adapter", epochs=1, precision="bf16"), workspace, seed=1)
        fuse("films", quick("fusion", **values), workspace, seed=1)
    else:
        trainable = "head" if kind == "frozen" else kind
        single_run(workspace, kind, "films", quick(trainable, **values), seed=1).get()


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("adapter", {}),
        ("adapter", {"pooling": "cls", "smart": 1.0}),
        pytest.param("adapter", {"pooling": "pooler"}, marks=pytest.mark.long),
        pytest.param("adapter", {"drop_layers": [0]}, marks=pytest.mark.long),
        pytest.param("adapter", {"adapter": "lora"}, marks=pytest.mark.long),
        pytest.param("adapter", {"adapter": "ia3"}, marks=pytest.mark.long),
        pytest.param("adapter", {"adapter": "bitfit"}, marks=pytest.mark.long),
        ("adapter", {"adapter": "prefix"}),
        pytest.param("adapter", {"adapter": "unipelt"}, marks=pytest.mark.long),
        ("adapter", {"train_layernorm": True}),
        ("fusion", {"fusion": "gated"}),
        pytest.param("fusion", {"fusion": "standard"}, marks=pytest.mark.long),
        ("multitask", {}),
        ("frozen", {}),
    ],
)
def test_rounding_once_changes_no_bit(
    kind: str, settings: dict[str, Any], workspace: Workspace, quick: Quick, tmp_path: Path, monkeypatch: Any
) -> None:
    places = {name: tmp_path / name for name in ("once", "each time")}
    for name, folder in places.items():
        if name == "each time":
            monkeypatch.setattr(training_run, "rounded", not_rounded)
        own = dataclasses.replace(workspace, store_root=folder / "store", reports=folder / "reports")
        train(kind, own, quick, settings)
    once, each_time = map(final_numbers, places.values())
    assert once
    assert once == each_time


def test_only_frozen_weights_of_the_encoders_linear_layers_are_rounded(backbone: Backbone) -> None:
    model = TransferModel(backbone.load(), build_head("linear", backbone.hidden_size, 2, 1, 0.0), "cross", "mean")
    model.backbone.encoder.layer[1].requires_grad_(True)
    frozen = model.backbone.requires_grad_(False).encoder.layer[0].output.dense
    trained = model.backbone.encoder.layer[1].output.dense.requires_grad_(True)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with rounded(model, backbone.tensor_names, torch.bfloat16):
        assert {frozen.weight.dtype, frozen.bias.dtype} == {torch.bfloat16}
        others = (trained.weight, model.head.out.weight, model.backbone.embeddings.word_embeddings.weight)
        assert {each.dtype for each in others} == {torch.float32}
        assert torch.equal(frozen.weight, before["backbone.encoder.layer.0.output.dense.weight"].bfloat16())
    after = model.state_dict()
    assert all(
        torch.equal(after[name], tensor) and after[name].dtype == tensor.dtype for name, tensor in before.items()
    )


def test_without_autocast_nothing_is_rounded(backbone: Backbone) -> None:
    model = TransferModel(backbone.load().requires_grad_(False), torch.nn.Identity(), "cross", "mean")
    with rounded(model, backbone.tensor_names, None):
        assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


@pytest.mark.parametrize("error", [None, ValueError("as it was")])
def test_a_change_is_seen_and_the_originals_come_back(error: ValueError | None, backbone: Backbone) -> None:
    model = TransferModel(backbone.load().requires_grad_(False), torch.nn.Identity(), "cross", "mean")
    weight = model.backbone.encoder.layer[0].output.dense.weight
    before = weight.clone()
    expected: tuple[Any, str] = (
        (RuntimeError, "changed during training") if error is None else (ValueError, "as it was")
    )
    with pytest.raises(expected[0], match=expected[1]), rounded(model, backbone.tensor_names, torch.bfloat16):
        weight.data[0, 0] += 1
        if error is not None:
            raise error
    assert torch.equal(weight, before)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("adapter", {}),
        pytest.param("adapter", {"pooling": "pooler"}, marks=pytest.mark.long),
        ("adapter", {"adapter": "prefix"}),
        pytest.param("adapter", {"train_layernorm": True}, marks=pytest.mark.long),
        ("fusion", {"fusion": "gated"}),
        pytest.param("fusion", {"fusion": "standard"}, marks=pytest.mark.long),
    ],
)
def test_a_model_that_only_predicts_answers_as_before(
    kind: str, settings: dict[str, Any], workspace: Workspace, quick: Quick, tmp_path: Path, monkeypatch: Any
) -> None:
    """In the program's own memory and as a command, whose answers are the same bit for bit."""
    train(kind, workspace, quick, {"epochs": 1, **settings})
    (kept,) = (
        each for each in workspace.store.artifacts() if (each.manifest.kind, each.manifest.task) == (kind, "films")
    )
    texts = ["good", "a film that is not as good as the last one was, for all that"]
    (tmp_path / "in.csv").write_text("sentence\n" + "".join(f'"{text}"\n' for text in texts))

    def answers(name: str) -> tuple[Any, ...]:
        model = load(kept.folder, data=workspace.data, precision="bf16")
        dtype = model._model.backbone.encoder.layer[0].output.dense.weight.dtype
        explained = model.explain(texts[1]) if kind == "fusion" else None
        assert model._model.backbone.encoder.layer[0].output.dense.weight.dtype == dtype
        out = tmp_path / f"{name}.csv"
        predict("films", tmp_path / "in.csv", out, workspace, using=kept.manifest.run, batch_size=1, precision="bf16")
        return [each.outputs for each in model.predict(texts, batch_size=1)], out.read_text(), dtype, explained

    once = answers("once")
    monkeypatch.setattr(api, "round_for_good", lambda *_: None)
    monkeypatch.setattr(api, "round_for_good", lambda *_: None)
    each_time = answers("each time")
    assert once[:2] == each_time[:2]
    assert (once[2], each_time[2]) == (torch.bfloat16, torch.float32)
    if kind == "fusion":
        pd.testing.assert_frame_equal(once[3], each_time[3], atol=0.01)  # of rounded weights, in fp32
