"""LoRA and (IA)^3 begin as the frozen model, and are trained, saved and refused as they should be."""

from pathlib import Path

import pytest
import torch

from pipeline.data.tasks import find_task
from pipeline.methods.registry import METHODS, add_modules, load_modules
from pipeline.methods.saved import SavedModules
from pipeline.models.backbone import Backbone
from pipeline.runs.sources import why_recipe_not_fused
from pipeline.settings.recipe import Recipe
from pipeline.settings.resolve import resolve
from pipeline.system.errors import PipelineError
from tests.pipeline.methods.adapted import hidden, randomise, stock_states, train_steps, trainable

LORA, IA3 = Recipe(adapter="lora", lora_rank=4), Recipe(adapter="ia3")
both = pytest.mark.parametrize("recipe", [LORA, IA3], ids=lambda recipe: recipe.adapter.kind)
TENSORS = {"lora": 2 * 2, "ia3": 3}
"""In a layer: two matrices for query and for value; a vector for key, for value and for the feed-forward layer."""


@both
def test_at_the_start_the_model_is_the_frozen_one_bit_for_bit(recipe: Recipe, backbone: Backbone) -> None:
    encoder = backbone.load()
    add_modules(encoder, ["films"], recipe)
    assert torch.equal(hidden(encoder), hidden(backbone.load()))


@both
def test_only_it_and_the_head_train(recipe: Recipe, backbone: Backbone) -> None:
    encoder, changed = train_steps(backbone, recipe)
    assert {name for name in changed if ".loras.films." not in name} == {"head.out.weight", "head.out.bias"}
    assert len(changed) == 2 * TENSORS[recipe.adapter.kind] + 2
    backbone.check_unchanged(encoder)


@both
def test_dropped_layers_have_none(recipe: Recipe, backbone: Backbone) -> None:
    encoder = backbone.load()
    add_modules(encoder, ["films"], recipe.changed({"drop_layers": (0,)}))
    names = [name for name, parameter in encoder.named_parameters() if parameter.requires_grad]
    assert len(names) == TENSORS[recipe.adapter.kind]
    assert all(".layer.1." in name for name in names)


@pytest.mark.parametrize(("recipe", "scale"), [(LORA, 0.3), (IA3, 1.0)], ids=["lora", "ia3"])
def test_saved_it_loads_the_same_here_and_in_stock_adapterhub(
    recipe: Recipe, scale: float, backbone: Backbone, backbone_folder: Path, tmp_path: Path
) -> None:
    encoder = backbone.load()
    add_modules(encoder, ["films"], recipe)
    randomise(encoder, ".loras.films.", scale=scale)
    METHODS[recipe.adapter.kind].save(encoder, "films", tmp_path / "films")
    loaded = backbone.load()
    load_modules(loaded, SavedModules("films", recipe, tmp_path / "films"))
    assert trainable(loaded) == 0
    assert torch.equal(hidden(loaded), hidden(encoder))
    torch.testing.assert_close(stock_states(backbone_folder, tmp_path / "films"), hidden(encoder), rtol=1e-5, atol=1e-5)


@both
def test_it_cannot_be_fused(recipe: Recipe) -> None:
    kind = recipe.adapter.kind
    with pytest.raises(PipelineError, match=rf"adapter '{kind}' cannot be fused: .* \(houlsby or pfeiffer\)"):
        resolve(Recipe(trainable="fusion", adapter=kind), find_task("sts"), "fp32")
    why = why_recipe_not_fused(recipe, True, "cross", "houlsby")
    assert why == f"is of kind {kind}: fusion mixes bottlenecks only (houlsby or pfeiffer)"
