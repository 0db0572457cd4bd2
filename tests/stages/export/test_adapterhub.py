"""Folders that stock AdapterHub and transformers load: their answers are those of the models, or there is no folder."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers

from pipeline.methods.registry import METHODS
from pipeline.models.backbone import Backbone
from pipeline.records.store import HEAD
from pipeline.system.errors import PipelineError
from stages.export import adapterhub
from stages.export.export import script_of
from stages.export.exported import Trained
from tests.stages.export.models import answers_of, assert_equal_answers, random_model, task_of, texts_for

Shallow = Callable[[str], Backbone]
CLS, MEAN, ADAPTER, FULL = {"pooling": "cls"}, {"pooling": "mean"}, {"trainable": "adapter"}, {"trainable": "full"}
FUSION = {"trainable": "fusion"}
SIAMESE = {"encoding": "siamese"}


def written(trained: Trained, folder: Path) -> bool:
    """Write the folder and compare its answers; returns whether the head is in the libraries' own files."""
    folder.mkdir()
    found = adapterhub.write(trained, folder)
    texts = [*texts_for(trained), ("the film [SEP] is good", "[MASK]")[: len(trained.task.text)]]
    answer, expected = script_of(folder), answers_of(trained, texts)
    assert_equal_answers(dict(answer(texts)), expected, [trained.answer])
    for number in (0, 1):  # alone, without padding
        alone = answer(texts[number : number + 1])[trained.answer]
        np.testing.assert_allclose(alone, expected[trained.answer][number : number + 1], rtol=0, atol=1e-4)
    assert answer([])[trained.answer].shape == expected[trained.answer][:0].shape
    in_script = any("not in the libraries" in note for note in found.notes)
    assert (folder / HEAD).exists() == (in_script and trained.recipe.head != "cosine")
    return not in_script


@pytest.mark.parametrize(
    ("family", "task", "settings", "has_head"),
    [
        *(
            ("bert", "films", {**ADAPTER, **CLS, "adapter": kind}, True)
            for kind, method in METHODS.items()
            if not method.stock_lacks
        ),
        ("roberta", "films", {**ADAPTER, **CLS, "adapter": "pfeiffer", "head": "mlp"}, True),
        ("distilbert", "films", {**ADAPTER, **CLS, "adapter": "lora", "one_logit": True}, True),
        ("bert", "pairs", {**ADAPTER, **CLS, "adapter": "prefix-tuning"}, True),
        ("bert", "pairs", {**ADAPTER, **CLS, "adapter": "ia3", "average_orders": True}, False),
        ("distilbert", "films", {**ADAPTER, **MEAN}, False),
        ("roberta", "pairs", {**ADAPTER, **MEAN, "head": "mlp"}, False),
        ("bert", "twins", {**ADAPTER, **SIAMESE, "head": "difference"}, False),
        ("bert", "twins", {**ADAPTER, **SIAMESE, "head": "comparison"}, False),
        ("distilbert", "twins", {**ADAPTER, **SIAMESE, "head": "cosine"}, False),
        ("distilbert", "twins", {**ADAPTER, **SIAMESE, "head": "cosine", "cosine_similar": "first"}, False),
        ("bert", "pairs", {**ADAPTER, **SIAMESE, "head": "cosine"}, False),
        ("bert", "pairs", {**ADAPTER, **SIAMESE, **CLS, "head": "cosine", "cosine_scale": "shifted"}, False),
        ("bert", "films", {**FUSION, **CLS, "fusion": "standard"}, True),
        ("roberta", "pairs", {**FUSION, **MEAN, "fusion": "anchored"}, False),
        ("bert", "films", {**FUSION, **CLS, "gate": "scalar"}, True),
        ("distilbert", "pairs", {**FUSION, "gate": "vector", "gate_shared": True}, False),
        ("bert", "films", {**FUSION, **CLS, "gate": "vector", "own_adapter": "none"}, True),
        ("bert", "films", {**FUSION, **CLS, "gate": "matrix"}, True),
        ("roberta", "pairs", {**FUSION, **MEAN, "gate": "matrix", "gate_rank": 2}, False),
        *((family, "films", {**FULL, **CLS}, True) for family in ("bert", "roberta", "distilbert")),
        ("distilbert", "pairs", {**FULL, **CLS, "head": "mlp"}, True),
        ("bert", "pairs", {**FULL, **CLS, "head": "mlp"}, False),
        ("roberta", "films", {**FULL, **MEAN}, False),
        ("electra", "films", {**FULL, **CLS}, False),
        ("deberta-v2", "films", {**FUSION, **CLS, "fusion": "standard"}, True),
        ("modernbert", "films", {**FULL, **MEAN}, False),
        ("bert", "twins", {**FULL, **SIAMESE, "head": "difference-mlp"}, False),
    ],
    ids=str,
)
def test_the_folder_answers_as_the_model(
    family: str, task: str, settings: dict[str, Any], has_head: bool, shallow: Shallow, tmp_path: Path
) -> None:
    trained = random_model(shallow(family), task_of(task), tmp_path / "store", **settings)
    assert written(trained, tmp_path / "out") == has_head


def test_the_folder_reads_texts_as_an_unusual_tokenizer_does(unusual: Backbone, tmp_path: Path) -> None:
    trained = random_model(unusual, task_of("pairs"), tmp_path / "store", **ADAPTER, **CLS)
    assert written(trained, tmp_path / "out")


@pytest.mark.parametrize("form", [{"fusion": "standard"}, {"gate": "scalar"}, {"fusion": "mean"}], ids=str)
def test_layers_without_adapters_stay_without(form: dict[str, str], backbone: Backbone, tmp_path: Path) -> None:
    trained = random_model(backbone, task_of("films"), tmp_path / "store", **FUSION, **CLS, **form, drop_layers="0")
    assert written(trained, tmp_path / "out")


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert"])
def test_a_trained_encoder_is_a_text_classification_pipeline_of_transformers(
    family: str, shallow: Shallow, tmp_path: Path
) -> None:
    trained = random_model(shallow(family), task_of("films"), tmp_path / "store", **FULL, **CLS)
    written(trained, tmp_path / "out")
    classify = transformers.pipeline("text-classification", model=str(tmp_path / "out"), device="cpu", top_k=None)
    text = "the film is very good"
    (expected,) = answers_of(trained, [(text,)])["probabilities"]
    found = {each["label"]: each["score"] for each in classify([text])[0]}
    assert found == pytest.approx({"bad": expected[0], "good": expected[1]}, abs=1e-4)


@pytest.mark.parametrize(
    ("task", "settings", "message"),
    [
        ("films", FUSION, "no fusion with a gate for each token"),
        *(
            ("films", {**ADAPTER, "adapter": kind}, f"no {method.stock_lacks} [(]adapter '{kind}'[)]")
            for kind, method in METHODS.items()
            if method.stock_lacks
        ),
        ("films", {**ADAPTER, "train_layernorm": True}, "no place for the LayerNorms"),
        ("films", {**ADAPTER, "truncation": "head-and-tail"}, "beginning and the end"),
        ("films", {**FULL, "second_encoder": "static"}, "two encoders"),
        ("films", {**FUSION, "fusion": "anchored", "width": 16}, "a bias for each adapter"),
        ("pairs", {**FULL, "pooling": "pooler"}, "the backbone's own pooler"),
        ("films", {"trainable": "full+adapter"}, "were trained together with the backbone"),
    ],
    ids=str,
)
def test_what_these_libraries_lack_is_refused_with_the_format_that_has_it(
    task: str, settings: dict[str, Any], message: str, shallow: Shallow, tmp_path: Path
) -> None:
    trained = random_model(shallow("bert"), task_of(task), tmp_path / "store", **settings)
    with pytest.raises(PipelineError, match=message) as refused:
        adapterhub.write(trained, tmp_path)
    assert "--format onnx" in str(refused.value) and "\n" not in str(refused.value)
    assert not list(tmp_path.glob("*.py"))


def test_an_adapter_of_a_modernbert_is_refused(shallow: Shallow, tmp_path: Path) -> None:
    trained = random_model(shallow("modernbert"), task_of("films"), tmp_path / "store", **ADAPTER)
    with pytest.raises(PipelineError, match="random biases.*--format onnx"):
        adapterhub.write(trained, tmp_path)
