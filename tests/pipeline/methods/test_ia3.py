"""(IA)^3 rescales keys, values and the feed-forward layer; what it shares with LoRA is in test_lora_and_ia3.py."""

import torch
from torch.nn import functional as F

from pipeline.methods.registry import add_modules
from pipeline.models.backbone import Backbone
from pipeline.settings.recipe import Recipe
from tests.pipeline.methods.adapted import randomise

RECIPE = Recipe(adapter="ia3")


def test_it_rescales_keys_values_and_the_feed_forward_layer_alone(backbone: Backbone) -> None:
    encoder = backbone.load()
    add_modules(encoder, ["films"], RECIPE)
    randomise(encoder, ".loras.films.", scale=1.0)
    layer, x = encoder.encoder.layer[0], torch.randn(2, 5, backbone.hidden_size)
    attention, expand = layer.attention.self, layer.intermediate.dense
    for projection in (attention.key, attention.value, expand):
        scale = projection.loras["films"].lora_B.flatten()
        expected = scale * F.linear(x, projection.weight, projection.bias)
        torch.testing.assert_close(projection(x), expected, rtol=1e-6, atol=1e-6)
        assert (scale - 1).abs().max() > 0.5
    torch.testing.assert_close(layer.intermediate(x), F.gelu(expand(x)), rtol=1e-6, atol=1e-6)
    assert torch.equal(attention.query(x), F.linear(x, attention.query.weight, attention.query.bias))
