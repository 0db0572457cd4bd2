"""A file of tensors is read whole and as expected, or refused in one line that says what is wrong."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import PreTrainedModel

from pipeline.models.backbone import Backbone, adapter_hashes, unchanged_parts
from pipeline.models.tensors import fill, is_finite, read_tensors
from pipeline.system.errors import PipelineError
from tests.pipeline.methods.adapted import add_adapter, add_standard_fusion, save_adapter, saved_modules

EXPECTED = {"head.weight": torch.zeros(2, 3), "head.bias": torch.zeros(2)}


def test_what_is_expected_is_read_and_the_part_of_another_reader_is_not(tmp_path: Path) -> None:
    file = tmp_path / "weights.safetensors"
    kept = {"head.weight": torch.arange(6.0).view(2, 3), "head.bias": torch.tensor([-1.0, 3e38])}
    save_file({**kept, "backbone.weight": torch.full((9,), torch.nan)}, file)
    read = read_tensors(file, EXPECTED, "train it again", part="head.")
    torch.testing.assert_close(read, kept, rtol=0, atol=0)
    bias = torch.nn.Parameter(torch.zeros(2))
    fill({"head.bias": bias}, read)
    assert torch.equal(bias, kept["head.bias"])
    assert bias.requires_grad


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({}, "2 tensors ('head.weight', ...) are missing"),
        ({"head.bias": torch.zeros(2)}, "'head.weight' is missing"),
        ({**EXPECTED, "other": torch.zeros(1)}, "'other' is unexpected"),
        ({**EXPECTED, "two\nlines\x1b[31m": torch.zeros(1)}, r"'two\nlines\x1b[31m' is unexpected"),
        ({**EXPECTED, "x" * 5000: torch.zeros(1)}, "xxx...xxx"),
        ({**EXPECTED, "head.weight": torch.zeros(3, 2)}, "'head.weight' is of another shape ((3, 2), not (2, 3))"),
        ({**EXPECTED, "head.bias": torch.zeros(2, dtype=torch.bfloat16)}, "'head.bias' is not fp32"),
        ({"weight": torch.zeros(2, 3), "head.bias": torch.zeros(2)}, "'head.weight' is missing; 'weight' is"),
        ({**EXPECTED, "head.bias": torch.tensor([0.0, torch.nan])}, "'head.bias' contains NaN or infinity"),
    ],
)
def test_the_message_names_each_difference(tensors: dict[str, torch.Tensor], message: str, tmp_path: Path) -> None:
    save_file(tensors, tmp_path / "weights.safetensors")
    with pytest.raises(PipelineError) as refused:
        read_tensors(tmp_path / "weights.safetensors", EXPECTED, "train it again")
    assert message in str(refused.value)
    assert str(refused.value).startswith(f"{tmp_path / 'weights.safetensors'}: ")
    assert str(refused.value).endswith(": train it again")
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 500


def test_a_file_that_is_not_there_or_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="nothing: missing: train it again"):
        read_tensors(tmp_path / "nothing", EXPECTED, "train it again")
    with pytest.raises(PipelineError, match="there is a folder where a file is needed"):
        read_tensors(tmp_path, EXPECTED, "train it again")


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("place", [0, 999, 1000])
def test_one_number_that_is_not_finite_is_noticed(value: float, place: int) -> None:
    tensor = torch.full((7, 143), 3e38)
    assert is_finite(tensor)
    tensor.view(-1)[place] = value
    assert not is_finite(tensor)


NAMES = ("films", "meals")


@pytest.fixture
def fused(backbone: Backbone, tmp_path: Path) -> PreTrainedModel:
    for seed, name in enumerate(NAMES):
        torch.manual_seed(seed)
        encoder = backbone.load()
        add_adapter(encoder, name, "houlsby", 8)
        save_adapter(encoder, name, tmp_path / name)
    encoder = backbone.load()
    add_standard_fusion(encoder, {name: saved_modules(name, tmp_path / name) for name in NAMES})
    return encoder


@pytest.mark.parametrize(
    ("part", "message"),
    [(".adapters.meals.", "frozen adapters changed during training: meals"), ("word_embeddings", "changed")],
)
def test_one_bit_of_an_adapter_or_the_backbone_is_seen(part, message, fused, backbone) -> None:
    before = adapter_hashes(fused, NAMES)
    changed = next(parameter for name, parameter in fused.named_parameters() if part in name)
    changed.detach().view(torch.int32).flatten()[-1] ^= 1
    with pytest.raises(RuntimeError, match=message):
        unchanged_parts(fused, backbone, before)
