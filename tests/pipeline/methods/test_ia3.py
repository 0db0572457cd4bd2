"""(IA)^3 rescales keys, values and the feed-forward layer, and is trained, saved and refused as it should be."""

from pathlib import Path

import pytest
import torch
from torch.nn import functional as F
from transformers import BertConfig, BertModel, PreTrainedModel

from pipeline.data.tasks import find_task
from pipeline.methods.modules import add_modules, load_modules, save_modules
from pipeline.methods.saved import SavedModules
from pipeline.models.backbone import Backbone
from pipeline.records.store import why_recipe_not_fused
from pipeline.settings.recipe import Recipe
from pipeline.system.errors import PipelineError
from tests.pipeline.methods.adapted import hidden, randomise, stock_states, train_steps, trainable

RECIPE = Recipe(adapter="ia3")


def with_ia3(backbone: Backbone) -> PreTrainedModel:
    encoder = backbone.load()
    add_modules(encoder, ["films"], RECIPE)
    return encoder


def test_at_the_start_the_model_is_the_frozen_one_bit_for_bit(backbone: Backbone) -> None:
    assert torch.equal(hidden(with_ia3(backbone)), hidden(backbone.load()))


def test_it_rescales_keys_values_and_the_feed_forward_layer_alone(backbone: Backbone) -> None:
    encoder = with_ia3(backbone)
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


def test_only_it_and_the_head_train(backbone: Backbone) -> None:
    encoder, changed = train_steps(backbone, RECIPE)
    assert {name for name in changed if ".loras.films." not in name} == {"head.out.weight", "head.out.bias"}
    assert len(changed) == 2 * 3 + 2
    backbone.check_unchanged(encoder)


def test_it_has_a_number_per_key_value_and_hidden_unit() -> None:
    with torch.device("meta"):
        bert = BertModel(BertConfig(), add_pooling_layer=False)
        add_modules(bert, ["films"], RECIPE)
    assert trainable(bert) == 12 * (768 + 768 + 3072)


def test_dropped_layers_have_none(backbone: Backbone) -> None:
    encoder = backbone.load()
    add_modules(encoder, ["films"], RECIPE.changed({"drop_layers": (0,)}))
    names = [name for name, parameter in encoder.named_parameters() if parameter.requires_grad]
    assert len(names) == 3
    assert all(".layer.1." in name for name in names)


def test_saved_it_loads_the_same_here_and_in_stock_adapterhub(
    backbone: Backbone, backbone_folder: Path, tmp_path: Path
) -> None:
    encoder = with_ia3(backbone)
    randomise(encoder, ".loras.films.", scale=1.0)
    save_modules(encoder, "films", RECIPE, tmp_path / "films")
    loaded = backbone.load()
    load_modules(loaded, SavedModules("films", RECIPE, tmp_path / "films"))
    assert trainable(loaded) == 0
    assert torch.equal(hidden(loaded), hidden(encoder))
    torch.testing.assert_close(stock_states(backbone_folder, tmp_path / "films"), hidden(encoder), rtol=1e-5, atol=1e-5)


def test_files_of_lora_are_refused(backbone: Backbone, tmp_path: Path) -> None:
    encoder, lora = backbone.load(), Recipe(adapter="lora")
    add_modules(encoder, ["films"], lora)
    save_modules(encoder, "films", lora, tmp_path / "films")
    with pytest.raises(PipelineError, match="adapter_config.json: does not fit its recipe"):
        load_modules(backbone.load(), SavedModules("films", RECIPE, tmp_path / "films"))


def test_it_cannot_be_fused() -> None:
    with pytest.raises(PipelineError, match=r"adapter 'ia3' cannot be fused: .* \(houlsby or pfeiffer\)"):
        Recipe(trainable="fusion", adapter="ia3").resolve(find_task("sts"), "fp32")
    why = why_recipe_not_fused(RECIPE, True, "cross", "houlsby")
    assert why == "is of kind ia3: fusion mixes bottlenecks only (houlsby or pfeiffer)"
