"""What was frozen is proved to be so, and a single changed bit is seen."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import PreTrainedModel

from pipeline.methods.layernorms import train_layernorms
from pipeline.models.backbone import Backbone, adapter_hashes, hash_tensors, unchanged_parts
from tests.pipeline.methods.adapted import add_adapter, add_standard_fusion, save_adapter, saved_modules

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


def test_a_fusion_leaves_backbone_and_adapters_as_their_files_have_them(fused, backbone, tmp_path) -> None:  # type: ignore[no-untyped-def]
    before = adapter_hashes(fused, NAMES)
    assert before == {name: hash_tensors(load_file(tmp_path / name / "adapter.safetensors")) for name in NAMES}
    assert before["films"] != before["meals"]
    assert unchanged_parts(fused, backbone, before) == {"backbone": backbone.weights_hash, **before}


def flip_last_bit(tensor: torch.Tensor) -> None:
    tensor.detach().view(torch.int32).flatten()[-1] ^= 1


def test_one_bit_of_an_adapter_is_seen(fused, backbone) -> None:  # type: ignore[no-untyped-def]
    before = adapter_hashes(fused, NAMES)
    flip_last_bit(next(p for name, p in fused.named_parameters() if ".adapters.meals." in name))
    with pytest.raises(RuntimeError, match="frozen adapters changed during training: meals"):
        unchanged_parts(fused, backbone, before)


def test_one_bit_of_the_backbone_is_seen(fused, backbone) -> None:  # type: ignore[no-untyped-def]
    flip_last_bit(fused.embeddings.word_embeddings.weight)
    with pytest.raises(RuntimeError, match="changed"):
        unchanged_parts(fused, backbone, adapter_hashes(fused, NAMES))


def test_what_trains_is_not_said_to_be_unchanged(encoder: PreTrainedModel, backbone: Backbone) -> None:
    assert unchanged_parts(encoder, backbone, {}) == {}
    encoder.requires_grad_(False)
    add_adapter(encoder, "films", "houlsby", 8)
    assert unchanged_parts(encoder, backbone, {}) == {"backbone": backbone.weights_hash}
    train_layernorms(encoder)
    assert unchanged_parts(encoder, backbone, {}) == {}
