"""Attention maps are what written-out attention gives, whatever way the encoder computes it otherwise."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModel

from pipeline.models.attention_maps import attention_maps, one_input
from pipeline.models.backbone import Backbone, open_backbone
from pipeline.models.lean import make_lean
from tests.nano import FAMILIES, save_backbone
from tests.pipeline.methods.adapted import add_adapter


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_they_are_the_mean_over_heads_of_eager_attention(family: str, pooling: Any, tmp_path: Path) -> None:
    folder = save_backbone(tmp_path, family)
    backbone = open_backbone(str(folder))
    encoder = backbone.load()
    make_lean(encoder, pooling)  # with CLS pooling the last layer else answers for the first token alone
    inputs, tokens = one_input(backbone.tokenizer, "the film is good", max_length=24)
    maps = attention_maps(encoder.eval(), inputs, [1, 2])
    eager = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    with torch.inference_mode():
        expected = eager(**inputs, output_attentions=True).attentions
    for layer, found in maps.items():
        assert found.shape == (len(tokens), len(tokens))
        assert found.sum(axis=1) == pytest.approx(1, abs=1e-5)
        assert found == pytest.approx(expected[layer - 1][0].mean(dim=0).numpy(), abs=1e-5)


def test_an_adapter_changes_what_is_above_it_alone(backbone: Backbone) -> None:
    inputs, _ = one_input(backbone.tokenizer, "the film is good", max_length=24)
    plain = attention_maps(backbone.load().eval(), inputs, [1, 2])
    encoder = backbone.load()
    add_adapter(encoder, "films", "houlsby", 8)
    for name, parameter in encoder.named_parameters():
        if "adapters.films" in name:
            torch.nn.init.normal_(parameter, std=1.0, generator=torch.Generator().manual_seed(0))
    adapted = attention_maps(encoder.eval(), inputs, [1, 2])
    assert adapted[1] == pytest.approx(plain[1], abs=1e-5)
    assert abs(adapted[2] - plain[2]).max() > 0.01
