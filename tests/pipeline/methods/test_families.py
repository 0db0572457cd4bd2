"""Adapters and fusions in every supported family: what holds for BERT holds for the others."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from pipeline.methods.fast_fusion import FusionSite
from pipeline.methods.gated import GatedFusion
from pipeline.methods.layernorms import load_layernorms
from pipeline.methods.registry import (
    METHODS,
    add_fusion,
    add_modules,
    load_fusion,
    load_modules,
    save_fusion,
    use_fusion_implementation,
)
from pipeline.methods.saved import SavedModules
from pipeline.models.backbone import Backbone
from pipeline.models.layout import activate, lower_states, upper_states
from pipeline.settings.recipe import Recipe
from tests.nano import FAMILIES
from tests.pipeline.methods.adapted import IDS, MASK, hidden, randomise, save_sources, with_gradients

FORMS = ["gated", "standard", "anchored"]

Saved = dict[str, SavedModules]


@pytest.fixture(scope="module", params=FAMILIES)
def backbone(request: Any, families: dict[str, Backbone]) -> Backbone:
    return families[request.param]


@pytest.fixture(scope="module")
def sources(backbone: Backbone, tmp_path_factory: pytest.TempPathFactory) -> Saved:
    """Two adapters with weights that matter."""
    return save_sources(backbone, ("meals", "pairs"), tmp_path_factory.mktemp("sources"))


def recipe_of(form: Any) -> Recipe:
    return Recipe(
        trainable="fusion", fusion=form, bottleneck=8, **({"own_adapter": "fresh"} if form == "gated" else {})
    )


def fused(backbone: Backbone, sources: Saved, form: str) -> Any:
    torch.manual_seed(0)
    encoder = backbone.load()
    add_fusion(encoder, sources, recipe_of(form), "films")
    for number, (name, parameter) in enumerate(encoder.named_parameters()):
        if parameter.requires_grad:
            randomise(encoder, name, seed=number, scale=0.2)
    return encoder


def same(found: Tensor, expected: Tensor) -> None:
    """Equal but for last bits: on some CPUs a product depends on where in memory its factors lie."""
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-4)


def run(encoder: Any, mask: Tensor = MASK) -> tuple[Tensor, dict[str, Tensor]]:
    """States of the tokens that are no padding, and gradients of a loss on them."""
    encoder.eval()
    return with_gradients(encoder, lambda: encoder(input_ids=IDS, attention_mask=mask).last_hidden_state[mask.bool()])


@pytest.mark.parametrize("kind", ["houlsby", "pfeiffer", "lora"])
def test_with_its_up_projection_at_zero_an_adapter_is_the_frozen_model(kind: Any, backbone: Backbone) -> None:
    encoder = backbone.load()
    add_modules(encoder, ["films"], Recipe(adapter=kind, bottleneck=8))
    randomise(encoder, "adapter_down")
    randomise(encoder, "adapter_up", scale=0.0)
    same(hidden(encoder), hidden(backbone.load()))


@pytest.mark.parametrize("form", FORMS)
def test_fast_fusion_is_stock_fusion(
    form: str, backbone: Backbone, sources: Saved, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    for owner, method in ((FusionSite, "_fuse"), (GatedFusion, "mixed")):
        original = getattr(owner, method)
        monkeypatch.setattr(owner, method, lambda *a, original=original: (calls.append(1), original(*a))[1])
    encoder = fused(backbone, sources, form).double()
    use_fusion_implementation(encoder, "stock")
    expected, expected_gradients = run(encoder)
    assert not calls
    use_fusion_implementation(encoder, "fast")
    found, gradients = run(encoder)
    assert len(calls) == 2 * backbone.layers
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)
    assert (
        gradients.keys() == expected_gradients.keys() == {n for n, p in encoder.named_parameters() if p.requires_grad}
    )
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, expected_gradients[name], rtol=0, atol=1e-9, msg=name)


@pytest.mark.parametrize("form", FORMS)
def test_training_a_fusion_leaves_backbone_and_sources_bit_for_bit(
    form: str, backbone: Backbone, sources: Saved
) -> None:
    encoder = fused(backbone, sources, form)
    use_fusion_implementation(encoder, "fast")
    before = {name: p.detach().clone() for name, p in encoder.named_parameters()}
    optimizer = torch.optim.AdamW([p for p in encoder.parameters() if p.requires_grad], lr=1e-2)
    run(encoder)
    optimizer.step()
    changed = {name for name, p in encoder.named_parameters() if not torch.equal(p, before[name])}
    own = {name for name in before if "adapter_fusion_layer" in name or ".adapters.films." in name}
    assert changed and changed <= own
    backbone.check_unchanged(encoder)


@pytest.mark.parametrize("form", FORMS)
def test_a_fusion_is_saved_and_loaded_and_blind_to_padding(
    form: str, backbone: Backbone, sources: Saved, tmp_path: Path
) -> None:
    encoder = fused(backbone, sources, form)
    saved = SavedModules("films", recipe_of(form), tmp_path / "fusion")
    save_fusion(encoder, sources, saved)
    loaded = backbone.load()
    load_fusion(loaded, sources, saved)
    same(hidden(loaded), hidden(encoder))
    loaded.double()
    alone = loaded(input_ids=IDS[1:2, :5], attention_mask=MASK[:1, :5]).last_hidden_state
    padded = loaded(input_ids=IDS, attention_mask=MASK).last_hidden_state
    torch.testing.assert_close(padded[1:2, :5], alone, rtol=0, atol=1e-9)


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_lower_and_upper_states_are_the_whole(depth: int, backbone: Backbone) -> None:
    encoder = backbone.load().eval()
    inputs = {"input_ids": IDS, "attention_mask": MASK}
    states = lower_states(encoder, depth, inputs)
    assert torch.equal(upper_states(encoder, depth, states, inputs), encoder(**inputs).last_hidden_state)
    same(hidden(encoder), hidden(backbone.load()))


def test_trained_layernorms_are_saved_with_their_adapter(backbone: Backbone, tmp_path: Path) -> None:
    recipe = Recipe(bottleneck=8, train_layernorm=True)
    encoder = backbone.load()
    add_modules(encoder, ["films"], recipe)
    norms = {n: p for n, p in encoder.named_parameters() if p.requires_grad and ".adapters." not in n}
    assert len(norms) >= 2 * backbone.layers
    randomise(encoder, "adapters.")
    for number, name in enumerate(norms):
        randomise(encoder, name, seed=number)
    saved = SavedModules("films", recipe, tmp_path)
    METHODS["houlsby"].save(encoder, "films", tmp_path)
    save_file({name: p.detach().clone() for name, p in norms.items()}, tmp_path / "norms.safetensors")
    loaded = backbone.load()
    load_modules(loaded, saved)
    assert load_layernorms(loaded, tmp_path / "norms.safetensors", saved) == norms.keys()
    same(hidden(loaded), hidden(encoder))


def test_each_of_several_tasks_has_its_own_layernorms(backbone: Backbone) -> None:
    encoder = backbone.load()
    add_modules(encoder, ["films", "meals"], Recipe(adapter="lora", train_layernorm=True))  # LoRA begins as nothing
    activate(encoder, "films")
    before = hidden(encoder)
    same(before, hidden(backbone.load()))
    randomise(encoder, ".own.tasks.meals.", seed=1)
    assert torch.equal(hidden(encoder), before)
    randomise(encoder, ".own.tasks.films.", seed=2)
    assert not torch.allclose(hidden(encoder), before, atol=1e-3)
    backbone.check_unchanged(encoder)
