"""LoRA computes its paper's equation at any rank that fits; what it shares with (IA)^3 is in test_lora_and_ia3.py."""

import torch
from torch.nn import functional as F

from pipeline.methods.registry import add_modules
from pipeline.models.backbone import Backbone
from pipeline.settings.recipe import Recipe
from tests.pipeline.methods.adapted import randomise

RANK = 4


def test_it_computes_its_equation_on_query_and_value_alone(backbone: Backbone) -> None:
    encoder = backbone.load()
    add_modules(encoder, ["films"], Recipe(adapter="lora", lora_rank=RANK))
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
