"""LoRA and (IA)^3 begin as the frozen model and compute their papers' equations; AdapterHub reads what is saved."""

from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from pipeline.methods.registry import METHODS, add_modules, load_modules
from pipeline.methods.saved import SavedModules
from pipeline.models.backbone import Backbone
from pipeline.settings.recipe import Recipe
from tests.nano import SIZES
from tests.pipeline.methods.adapted import hidden, randomise, stock_states, trainable

LORA, IA3 = Recipe(adapter="lora", lora_rank=4), Recipe(adapter="ia3")
UNIPELT = Recipe(adapter="unipelt", **SIZES)
both = pytest.mark.parametrize("recipe", [LORA, IA3], ids=lambda recipe: recipe.adapter.kind)
"""In a layer: two matrices for query and for value; a vector for key, for value and for the feed-forward layer."""


@both
def test_at_the_start_the_model_is_the_frozen_one_bit_for_bit(recipe: Recipe, backbone: Backbone) -> None:
    encoder = backbone.load()
    add_modules(encoder, ["films"], recipe)
    assert torch.equal(hidden(encoder), hidden(backbone.load()))


@pytest.mark.parametrize(("recipe", "scale"), [(LORA, 0.3), (IA3, 1.0), (UNIPELT, 0.5)], ids=["lora", "ia3", "unipelt"])
def test_saved_it_loads_the_same_here_and_in_stock_adapterhub(
    recipe: Recipe, scale: float, backbone: Backbone, backbone_folder: Path, tmp_path: Path
) -> None:
    encoder = backbone.load()
    add_modules(encoder, ["films"], recipe)
    randomise(encoder, "films", scale=scale)
    METHODS[recipe.adapter.kind].save(encoder, "films", tmp_path / "films")
    loaded = backbone.load()
    load_modules(loaded, SavedModules("films", recipe, tmp_path / "films"))
    assert trainable(loaded) == 0
    assert torch.equal(hidden(loaded), hidden(encoder))
    torch.testing.assert_close(stock_states(backbone_folder, tmp_path / "films"), hidden(encoder), rtol=1e-5, atol=1e-5)


def test_lora_computes_its_equation_on_query_and_value_alone(backbone: Backbone) -> None:
    encoder = backbone.load()
    add_modules(encoder, ["films"], LORA)
    randomise(encoder, ".loras.films.")
    attention = encoder.encoder.layer[0].attention.self
    x = torch.randn(2, 5, backbone.hidden_size)
    for projection in (attention.query, attention.value):
        lora = projection.loras["films"]
        term = 8 / 4 * x @ lora.lora_A.T @ lora.lora_B.T
        expected = F.linear(x, projection.weight, projection.bias) + term
        torch.testing.assert_close(projection(x), expected, rtol=1e-5, atol=1e-5)
        assert term.abs().max() > 0.1
    assert torch.equal(attention.key(x), F.linear(x, attention.key.weight, attention.key.bias))


def test_it_rescales_keys_values_and_the_feed_forward_layer_alone(backbone: Backbone) -> None:
    encoder = backbone.load()
    add_modules(encoder, ["films"], IA3)
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
