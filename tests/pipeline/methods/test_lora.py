"""LoRA computes its paper's equation at any rank that fits; what it shares with (IA)^3 is in test_lora_and_ia3.py."""

from pathlib import Path

import pytest
import torch
from torch.nn import functional as F
from transformers import PreTrainedModel

from pipeline.methods.registry import METHODS, add_modules, load_modules
from pipeline.methods.saved import SavedModules
from pipeline.models.backbone import Backbone
from pipeline.settings.recipe import Recipe
from pipeline.system.errors import PipelineError
from tests.pipeline.methods.adapted import randomise

RANK = 4
RECIPE = Recipe(adapter="lora", lora_rank=RANK)


def with_lora(backbone: Backbone) -> PreTrainedModel:
    encoder = backbone.load()
    add_modules(encoder, ["films"], RECIPE)
    return encoder


def test_it_computes_its_equation_on_query_and_value_alone(backbone: Backbone) -> None:
    encoder = with_lora(backbone)
    randomise(encoder, ".loras.films.")
    attention = encoder.encoder.layer[0].attention.self
    x = torch.randn(2, 5, backbone.hidden_size)
    for projection in (attention.query, attention.value):
        lora = projection.loras["films"]
        term = 8 / RANK * x @ lora.lora_A.T @ lora.lora_B.T
        expected = F.linear(x, projection.weight, projection.bias) + term
        torch.testing.assert_close(projection(x), expected, rtol=1e-5, atol=1e-5)
        assert term.abs().max() > 0.1
    assert torch.equal(attention.key(x), F.linear(x, attention.key.weight, attention.key.bias))


def test_a_file_of_another_rank_is_refused(backbone: Backbone, tmp_path: Path) -> None:
    METHODS["lora"].save(with_lora(backbone), "films", tmp_path / "films")
    other = SavedModules("films", Recipe(adapter="lora", lora_rank=RANK + 1), tmp_path / "films")
    with pytest.raises(PipelineError, match="does not fit its recipe [(]r is 4, not 5[)]"):
        load_modules(backbone.load(), other)
