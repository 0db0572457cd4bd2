"""ONNX files answer as the models in torch, whatever was trained, at lengths and batch sizes that were not traced."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pipeline.methods.registry import METHODS
from pipeline.models.backbone import Backbone
from stages.export.export import compare, script_of
from stages.export.exported import Trained
from tests.stages.export.models import answers_of, assert_equal_answers, random_model, task_of, texts_for

onnx_format = pytest.importorskip("stages.export.onnx", reason="the extra export is not installed")

Shallow = Callable[[str], Backbone]
ADAPTER = {"trainable": "adapter"}


FUSION, FULL, SIAMESE = {"trainable": "fusion"}, {"trainable": "full"}, {"encoding": "siamese"}
Case = tuple[str, str, dict[str, Any]]


def long(*cases: Case) -> list[Any]:
    """Cases that only make test-slow runs."""
    return [pytest.param(*case, marks=pytest.mark.long) for case in cases]


@pytest.mark.parametrize(
    ("family", "task", "settings"),
    [
        ("bert", "films", ADAPTER),
        *long(
            ("roberta", "films", FUSION),
            ("bert", "pairs", {**FUSION, "fusion": "standard", "fusion_impl": "stock"}),
            ("distilbert", "twins", {**FULL, **SIAMESE, "head": "difference-mlp"}),
            ("roberta", "films", {**ADAPTER, "adapter": "prefix", "truncation": "head-and-tail", "max_length": 6}),
        ),
    ],
    ids=str,
)
def test_the_file_answers_as_torch_does(
    family: str, task: str, settings: dict[str, Any], shallow: Shallow, tmp_path: Path
) -> None:
    trained = random_model(shallow(family), task_of(task), tmp_path / "store", **settings)
    texts = texts_for(trained)
    expected = answers_of(trained, texts)
    onnx_format.write(trained, tmp_path)
    answer = script_of(tmp_path)
    for batch in (slice(0, 0), slice(0, 1), slice(1, 2), slice(2, 9)):
        found = answer(texts[batch])
        for name, values in found.items():
            assert values.shape == expected[name][batch].shape
            np.testing.assert_allclose(values, expected[name][batch], rtol=0, atol=1e-4)
    assert_equal_answers(dict(answer(texts)), expected, ["outputs", trained.answer])


@pytest.mark.parametrize(
    ("family", "task", "settings"),
    [
        *(("bert", "films", {**ADAPTER, "adapter": kind}) for kind in ("houlsby", "pal", "prefix-tuning")),
        ("distilbert", "films", {**ADAPTER, "adapter": "bitfit", "head": "mlp"}),
        ("bert", "twins", {**FULL, **SIAMESE, "head": "cosine", "pooling": "cls"}),
        *long(
            *(
                ("bert", "films", {**ADAPTER, "adapter": kind})
                for kind in sorted(METHODS.keys() - {"houlsby", "pal", "prefix-tuning"})
            ),
            ("bert", "pairs", {**ADAPTER, **SIAMESE, "adapter": "lora", "head": "cosine"}),
            ("bert", "twins", {**ADAPTER, **SIAMESE, "head": "cosine", "cosine_similar": "first"}),
            ("bert", "films", {**FUSION, "gate": "matrix", "gate_rank": 2, "pooling": "cls"}),
            ("bert", "films", {**FUSION, "gate": "vector", "own_adapter": "none", "pooling": "cls"}),
            ("roberta", "pairs", {**FUSION, "gate": "scalar"}),
            ("electra", "films", ADAPTER),
            ("deberta-v2", "films", FUSION),
            ("modernbert", "pairs", ADAPTER),
            ("distilbert", "pairs", {**FUSION, "fusion": "anchored", "average_orders": True}),
            ("bert", "films", {**FULL, "second_encoder": "static", "one_logit": True}),
        ),
    ],
    ids=str,
)
def test_what_is_traced_answers_as_torch_does(
    family: str, task: str, settings: dict[str, Any], shallow: Shallow, tmp_path: Path
) -> None:
    """The graph before it is translated, which takes longer: rows and lengths are free, and nothing is a constant."""
    trained = random_model(shallow(family), task_of(task), tmp_path, **settings)
    module = onnx_format.Answering(trained)
    example, sizes = onnx_format.traced_inputs(trained)
    with torch.no_grad():
        module(*example)
        program = torch.export.export(module, example, dynamic_shapes=(sizes,)).module()
        for rows, length in ((1, 2), (2, 23), (5, 11)):
            tensors = list(_inputs(trained, rows, length))
            for found, expected in zip(program(*tensors), module(*tensors), strict=True):
                torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


@pytest.mark.long
def test_the_script_reads_texts_as_an_unusual_tokenizer_does(unusual: Backbone, tmp_path: Path) -> None:
    trained = random_model(unusual, task_of("films"), tmp_path / "store", **ADAPTER, pooling="cls")
    texts = [*texts_for(trained), ("the film [SEP] is good",)]
    onnx_format.write(trained, tmp_path)
    assert_equal_answers(dict(script_of(tmp_path)(texts)), answers_of(trained, texts), ["outputs", "probabilities"])


def _inputs(trained: Trained, rows: int, length: int) -> Iterator[torch.Tensor]:
    generator = torch.Generator().manual_seed(rows)
    kinds = len(onnx_format.names_of(trained)) // len(trained.inputs)
    for number in range(len(trained.inputs)):
        tokens = torch.randint(5, 20, (rows, length + number), generator=generator)
        mask = torch.ones_like(tokens)
        mask[0, 1 + length // 2 :] = 0
        yield from (tokens, mask, torch.zeros_like(tokens))[:kinds]


@pytest.fixture(scope="module")
def adapter(shallow: Shallow, tmp_path_factory: pytest.TempPathFactory) -> tuple[Trained, Path]:
    """An adapter and its folder."""
    root = tmp_path_factory.mktemp("adapter")
    trained = random_model(shallow("bert"), task_of("films"), root / "store", **ADAPTER, pooling="cls")
    (root / "out").mkdir()
    onnx_format.write(trained, root / "out")
    return trained, root / "out"


def test_the_script_prints_names_and_probabilities_and_needs_nothing_of_this_project(
    adapter: tuple[Trained, Path], tmp_path: Path
) -> None:
    trained, folder = adapter
    blocked = "import sys; sys.modules.update(dict.fromkeys(('torch', 'transformers', 'pipeline')))"
    as_program = f"import runpy; runpy.run_path({str(folder / 'run.py')!r}, run_name='__main__')"
    script = f"{blocked}; sys.argv = ['run.py', 'the film is good']; {as_program}"
    printed = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    lines = [line.split("  ") for line in printed.stdout.splitlines()]
    expected = answers_of(trained, [("the film is good",)])["probabilities"][0]
    assert [name for _, name in lines] == ["bad", "good"]
    for texts in ([], ["one", "two"]):
        asked = [sys.executable, str(folder / "run.py"), *texts]
        refused = subprocess.run(asked, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert refused.returncode == 2
        assert refused.stderr.startswith("usage: python ") and refused.stderr.endswith("run.py TEXT\n")
    assert [float(value) for value, _ in lines] == pytest.approx(expected.tolist(), abs=1e-4)


def test_the_folder_says_what_the_model_is_and_nothing_of_this_machine(adapter: tuple[Trained, Path]) -> None:
    trained, folder = adapter
    described = json.loads((folder / "task.json").read_text())
    assert described["classes"] == ["bad", "good"]
    assert (described["encoding"], described["max_length"], described["metric"]) == ("cross", 24, "accuracy")
    for file in folder.iterdir():
        for path in (str(Path(__file__).parents[3]), trained.backbone.name):
            assert path.encode() not in file.read_bytes(), file.name


def test_int8_is_smaller_and_its_difference_is_reported(adapter: tuple[Trained, Path], tmp_path: Path) -> None:
    trained, folder = adapter
    texts = texts_for(trained, 40)
    expected = answers_of(trained, texts)
    for name in ("model.onnx", "run.py", "task.json", "tokenizer.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    whole = compare(trained, expected, folder, texts)
    onnx_format.quantise(tmp_path)
    found = compare(trained, expected, tmp_path, texts)
    assert whole.difference < 1e-4 < found.difference < 1
    assert found.agree is not None and found.agree > 0.8 and found.rows == 40
    assert (tmp_path / "model.onnx").stat().st_size < 0.7 * (folder / "model.onnx").stat().st_size
    assert {file.name for file in tmp_path.iterdir()} == {"model.onnx", "run.py", "task.json", "tokenizer.json"}
