"""What every form of fusion has to prove: it is kept as it was, and says rightly what its training adds."""

from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from pipeline.methods.fusion import FORMS, add_fusion, load_fusion, save_fusion
from pipeline.methods.saved import SavedModules
from pipeline.models.backbone import Backbone
from pipeline.settings.forms import FusionForm
from pipeline.settings.recipe import Recipe
from pipeline.training.optim import parameter_groups
from tests.pipeline.methods.adapted import hidden, randomise, save_sources

NAMES = ("films", "meals")


def test_every_form_has_settings_and_a_method() -> None:
    assert FORMS.keys() == {*get_args(FusionForm)}


@pytest.fixture
def sources(backbone: Backbone, tmp_path: Path) -> dict[str, SavedModules]:
    return save_sources(backbone, NAMES, tmp_path)


@pytest.mark.parametrize("form", FORMS)
def test_a_fusion_is_kept_as_it_was(
    form: FusionForm, backbone: Backbone, sources: dict[str, SavedModules], tmp_path: Path
) -> None:
    recipe = Recipe.parse({"trainable": "fusion", "fusion": form, "bottleneck": 8, "fusion_rank": 4}, form)
    trained, again = backbone.load(), backbone.load()
    add_fusion(trained, sources, recipe, "songs")
    fresh = hidden(trained)
    randomise(trained, "adapter_fusion_layer", seed=3)
    saved = SavedModules("songs", recipe, tmp_path / "of" / "songs")
    save_fusion(trained, sources, saved)
    load_fusion(again, sources, saved)
    torch.testing.assert_close(dict(again.named_parameters()), dict(trained.named_parameters()), rtol=0, atol=0)
    torch.testing.assert_close(hidden(again), hidden(trained), rtol=0, atol=1e-4)
    assert not torch.allclose(hidden(again), fresh, atol=0.01)
    assert not any(parameter.requires_grad for parameter in again.parameters())


@pytest.mark.parametrize("form", FORMS)
def test_what_is_exempt_from_decay_or_pulled_is_what_trains_in_the_fusion(
    form: FusionForm, backbone: Backbone, sources: dict[str, SavedModules]
) -> None:
    recipe = Recipe.parse({"trainable": "fusion", "fusion": form, "bottleneck": 8, "fusion_rank": 4}, form)
    encoder, method = backbone.load(), FORMS[form]
    add_fusion(encoder, sources, recipe, "songs")
    trains = {name for name, parameter in encoder.named_parameters() if parameter.requires_grad}
    assert method.without_decay(encoder) <= trains
    if (penalty := method.penalty(encoder, recipe)) is not None:
        penalty().backward()
    pulled = {name for name, parameter in encoder.named_parameters() if parameter.grad is not None}
    assert pulled == (method.without_decay(encoder) if form == "standard" else set())


@pytest.mark.parametrize(
    ("settings", "decays"),
    [
        ({"fusion": "standard"}, ["key.weight", "query.weight"]),
        ({"fusion": "anchored"}, ["key.weight", "query.weight", "value_down.weight", "value_up.weight"]),
        ({"fusion": "gated", "own_adapter": "none", "gate": "token"}, ["weight"]),
        ({"fusion": "gated", "own_adapter": "none", "gate": "scalar"}, []),
        ({"fusion": "gated", "own_adapter": "none", "gate": "vector"}, []),
        ({"fusion": "gated", "own_adapter": "none", "gate": "vector", "gate_shared": True}, []),
        ({"fusion": "gated", "own_adapter": "none", "gate": "matrix", "gate_rank": 4}, ["factor", "matrix"]),
    ],
    ids=str,
)
def test_matrices_of_a_fusion_decay_and_nothing_else(
    settings: dict[str, Any], decays: list[str], backbone: Backbone, sources: dict[str, SavedModules]
) -> None:
    recipe = Recipe.parse({"trainable": "fusion", "bottleneck": 8, **settings}, "test")
    encoder = backbone.load()
    add_fusion(encoder, sources, recipe, "songs")
    groups = parameter_groups(encoder, 0.01, FORMS[recipe.fusion.form].without_decay(encoder))
    decaying = {id(parameter) for group in groups if group["weight_decay"] for parameter in group["params"]}
    names = {name for name, parameter in encoder.named_parameters() if id(parameter) in decaying}
    assert sorted({name.split("films,meals.")[1] for name in names}) == decays
