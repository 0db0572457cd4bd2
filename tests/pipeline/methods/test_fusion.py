"""What every form of fusion has to prove: it is kept as it was, and says rightly what its training adds."""

from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from adapters.composition import Stack
from torch import Tensor

from pipeline.methods.bank import merge, merge_into, ties
from pipeline.methods.registry import FORMS, METHODS, add_fusion, add_modules, load_fusion, save_fusion
from pipeline.methods.saved import SavedModules
from pipeline.models.backbone import Backbone
from pipeline.models.layout import module_parameter_names
from pipeline.settings.parts import FusionForm, Merge
from pipeline.settings.recipe import Recipe
from pipeline.training.optim import parameter_groups
from tests.pipeline.methods.adapted import hidden, randomise, save_sources

NAMES = ("films", "meals")


def test_every_form_has_settings_and_a_method() -> None:
    assert FORMS.keys() == {*get_args(FusionForm)}


@pytest.fixture(scope="module")
def sources(backbone: Backbone, tmp_path_factory: pytest.TempPathFactory) -> dict[str, SavedModules]:
    return save_sources(backbone, NAMES, tmp_path_factory.mktemp("sources"))


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
    rates = {name: 1e-3 for name, parameter in encoder.named_parameters() if parameter.requires_grad}
    groups = parameter_groups(encoder, rates, 0.01, FORMS[recipe.fusion.form].without_decay(encoder))
    decaying = {id(parameter) for group in groups if group["weight_decay"] for parameter in group["params"]}
    names = {name for name, parameter in encoder.named_parameters() if id(parameter) in decaying}
    assert sorted({name.split("films,meals.")[1] for name in names}) == decays


MEAN, TIES = Merge(rule="mean"), Merge(rule="ties")


def by_hand(vectors: np.ndarray, density: float) -> np.ndarray:
    """TIES one number at a time."""
    kept = max(1, round(density * vectors.shape[1]))
    trimmed = np.zeros_like(vectors)
    for vector, own in zip(vectors, trimmed, strict=True):
        for index in sorted(range(len(vector)), key=lambda i: -abs(vector[i]))[:kept]:
            own[index] = vector[index]
    merged = np.zeros(vectors.shape[1])
    for index, column in enumerate(trimmed.T):
        positive, negative = column[column > 0], column[column < 0]
        if positive.sum() != -negative.sum():
            merged[index] = (positive if positive.sum() > -negative.sum() else negative).mean()
    return merged


@pytest.mark.parametrize("density", [0.01, 0.2, 0.5, 1.0])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_ties_is_what_it_is_by_hand(count: int, density: float) -> None:
    vectors = torch.randn(count, 101, generator=torch.Generator().manual_seed(count), dtype=torch.float64)
    np.testing.assert_allclose(ties(vectors, density).numpy(), by_hand(vectors.numpy(), density), rtol=1e-12)


@pytest.mark.parametrize("settings", [MEAN, Merge(rule="ties", density=1.0)], ids=["mean", "ties"])
def test_copies_of_an_adapter_merge_to_it(settings: Merge) -> None:
    start, adapter = torch.randn(2, 50, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(merge(adapter.expand(4, -1), start, settings), adapter)


def test_ties_is_about_the_start_and_scaled_from_there() -> None:
    start, *changes = torch.randn(4, 50, generator=torch.Generator().manual_seed(0))
    vectors = torch.stack(changes)
    for scale in (1.0, 0.5):
        merged = merge(start + vectors, start, TIES.model_copy(update={"scale": scale}))
        torch.testing.assert_close(merged, start + scale * ties(vectors, 0.2), rtol=1e-4, atol=1e-5)
    assert torch.equal(merge(start.expand(3, -1), start, TIES), start)


def test_the_mean_is_adapterhubs_and_nothing_else_changes(backbone: Backbone, tmp_path: Path) -> None:
    sources = [*save_sources(backbone, ("task1", "task2", "task3"), tmp_path).values()]
    encoder, stock = backbone.load(), backbone.load()
    add_modules(encoder, ["films"], sources[0].recipe)
    merge_into(encoder, "films", sources, MEAN)
    backbone.check_unchanged(encoder)
    for source in sources:
        METHODS["houlsby"].load(stock, source, ())
    stock.average_adapter("films", [source.task for source in sources])
    stock.set_active_adapters(Stack("films"))
    torch.testing.assert_close(hidden(encoder), hidden(stock), rtol=1e-5, atol=1e-5)


def weights(encoder: torch.nn.Module) -> dict[str, Tensor]:
    own = module_parameter_names(encoder)
    return {name: p.detach().clone() for name, p in encoder.named_parameters() if name in own}


def test_ties_into_a_model_trims_over_the_whole_adapter(backbone: Backbone, tmp_path: Path) -> None:
    """Numbers of all sites compete for the share that stays."""
    (source,) = save_sources(backbone, ["task1"], tmp_path).values()
    encoder = backbone.load()
    torch.manual_seed(0)
    add_modules(encoder, ["films"], source.recipe)
    start = weights(encoder)
    merge_into(encoder, "films", [source], TIES)
    merged = weights(encoder)
    changed = sum((merged[name] != start[name]).sum().item() for name in start)
    assert changed == round(0.2 * sum(tensor.numel() for tensor in start.values()))
