"""A fusion without one of its adapters is what pruning would leave, and afterwards the whole fusion, bit for bit."""

from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from pipeline.methods.registry import add_fusion, leaving_out, members_of, prune_fusion, use_fusion_implementation
from pipeline.methods.saved import SavedModules
from pipeline.models.backbone import Backbone
from pipeline.settings.recipe import Recipe
from tests.pipeline.methods.adapted import hidden, randomise, save_sources

NAMES = ("films", "meals", "pairs")
FORMS: dict[str, dict[str, Any]] = {
    "standard": {"fusion": "standard"},
    "anchored": {"fusion": "anchored", "fusion_rank": 4},
    "token": {"fusion": "gated"},
    "scalar": {"fusion": "gated", "gate": "scalar"},
    "vector": {"fusion": "gated", "gate": "vector"},
    "matrix": {"fusion": "gated", "gate": "matrix", "gate_rank": 2},
    "shared": {"fusion": "gated", "gate_shared": True},
    "mean": {"fusion": "mean"},
    "without own": {"fusion": "gated", "own_adapter": "none"},
}


@pytest.fixture(scope="module")
def sources(backbone: Backbone, tmp_path_factory: pytest.TempPathFactory) -> dict[str, SavedModules]:
    return save_sources(backbone, NAMES, tmp_path_factory.mktemp("sources"))


def fused(backbone: Backbone, sources: dict[str, SavedModules], form: str, implementation: Any) -> PreTrainedModel:
    encoder = backbone.load()
    add_fusion(encoder, sources, Recipe.parse({"trainable": "fusion", "bottleneck": 8, **FORMS[form]}, form), "songs")
    randomise(encoder, "adapter_fusion_layer", seed=3)
    randomise(encoder, "adapters.songs", seed=4)
    use_fusion_implementation(encoder, implementation)
    return encoder.requires_grad_(False).eval()


def members(form: str) -> list[str]:
    return members_of(Recipe.parse({"trainable": "fusion", **FORMS[form]}, form), "songs", NAMES)


@pytest.mark.covering(1)
@pytest.mark.parametrize("implementation", ["fast", "stock"])
@pytest.mark.parametrize("form", FORMS)
def test_a_left_out_adapter_is_as_if_it_were_pruned_and_then_back(form, implementation, backbone, sources) -> None:
    encoder = fused(backbone, sources, form, implementation)
    whole, names = hidden(encoder), list(encoder.state_dict())
    for name in {members(form)[0], members(form)[-1]}:
        with leaving_out(encoder, members(form), name):
            found = hidden(encoder)
        pruned = fused(backbone, sources, form, implementation)
        prune_fusion(pruned, members(form), {*members(form)} - {name})
        torch.testing.assert_close(found, hidden(pruned), atol=1e-5, rtol=1e-5)
        assert (found - whole).abs().max() > 1e-3
        assert torch.equal(hidden(encoder), whole)
    assert list(encoder.state_dict()) == names


def test_an_error_inside_leaves_the_fusion_whole(backbone, sources) -> None:
    encoder = fused(backbone, sources, "token", "fast")
    whole = hidden(encoder)
    with pytest.raises(KeyError), leaving_out(encoder, members("token"), "meals"):
        raise KeyError
    assert torch.equal(hidden(encoder), whole)
