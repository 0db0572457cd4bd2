"""Layers without adapters have nothing: no parameters, no fusion, nothing saved; stock AdapterHub agrees."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import adapters
import pytest
import torch
from adapters.composition import Fuse
from safetensors import safe_open
from transformers import BertModel

from pipeline.methods.anchored import anchor_fusion
from pipeline.methods.layernorms import train_layernorms
from pipeline.methods.registry import load_fusion
from pipeline.methods.saved import SavedModules
from pipeline.methods.standard import FORM
from pipeline.models.backbone import Backbone, open_backbone
from pipeline.settings.recipe import Recipe
from tests.nano import save_backbone
from tests.pipeline.methods.adapted import (
    add_adapter,
    add_standard_fusion,
    hidden,
    randomise,
    save_fused,
    saved_modules,
    trainable,
)

SITE = 2 * 32 * 8 + 32 + 8
FUSION_SITE = 3 * 32**2 + 2 * 32
Save = Callable[..., SavedModules]


def keys(file: Path) -> set[str]:
    with safe_open(file, framework="pt") as opened:
        return set(opened.keys())


def fusion_in(folder: Path, **values: Any) -> SavedModules:
    return saved_modules("films", folder, trainable="fusion", **{"fusion": "standard", **values})


def stock(backbone_folder: Path) -> Any:
    model = BertModel.from_pretrained(backbone_folder, add_pooling_layer=False)
    adapters.init(model)
    return model


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert"])
def test_an_adapter_is_not_there_in_dropped_layers(family: str, tmp_path: Path) -> None:
    encoder = open_backbone(str(save_backbone(tmp_path, family))).load()
    add_adapter(encoder, "films", "houlsby", 8, (0,))
    assert trainable(encoder) == 2 * SITE
    assert all(".layer.1." in name for name, p in encoder.named_parameters() if p.requires_grad)
    train_layernorms(encoder, (0,))
    assert trainable(encoder) == 2 * SITE + 2 * 2 * 32


@pytest.mark.parametrize(
    ("dropped", "trains"), [((), {"embeddings", "layers", "final_norm"}), ((0,), {"layers", "final_norm"})]
)
def test_the_norm_above_modernberts_layers_trains_though_the_lowest_is_left_out(
    dropped: tuple[int, ...], trains: set[str], tmp_path: Path
) -> None:
    encoder = open_backbone(str(save_backbone(tmp_path, "modernbert"))).load().requires_grad_(False)
    train_layernorms(encoder, dropped)
    assert {name.split(".")[0] for name, parameter in encoder.named_parameters() if parameter.requires_grad} == trains


@pytest.mark.parametrize("by", ["adapters", "fusion"])
def test_fusion_stands_only_where_adapters_are(by: str, saved: Save, backbone, backbone_folder, tmp_path) -> None:
    """Whether the adapters left the layer out or the fusion does: trained, counted, regularised, saved, loaded."""
    own = (0,) if by == "adapters" else ()
    sources = {name: saved(name, seed, drop_layers=own) for seed, name in enumerate(("films", "meals"))}
    drop_layers = () if by == "adapters" else (0,)
    fused = backbone.load()
    add_standard_fusion(fused, sources, drop_layers)
    assert trainable(fused) == 2 * FUSION_SITE
    assert len(FORM.without_decay(fused)) == 2
    randomise(fused, "adapter_fusion_layer", seed=3, scale=0.1)
    values = [p for name, p in fused.named_parameters() if name in FORM.without_decay(fused)]
    expected = sum((value - torch.eye(32)).square().sum().item() for value in values)
    recipe = Recipe(trainable="fusion", fusion="standard", fusion_regularization=1.0)
    assert FORM.penalty(fused, recipe)().item() == pytest.approx(expected, rel=1e-5)

    save_fused(fused, sources, tmp_path / "fusion")
    assert all(".layer.1." in key for key in keys(tmp_path / "fusion" / "model_adapter_fusion.safetensors"))
    loaded = backbone.load()
    load_fusion(loaded, sources, fusion_in(tmp_path / "fusion", drop_layers=(0,)))
    torch.testing.assert_close(hidden(loaded), hidden(fused), atol=1e-5, rtol=1e-5)
    assert trainable(loaded) == 0

    theirs = stock(backbone_folder)
    names = [theirs.load_adapter(str(folder.folder), use_safetensors=True) for folder in sources.values()]
    theirs.load_adapter_fusion(str(tmp_path / "fusion"), use_safetensors=True)
    theirs.set_active_adapters(Fuse(*names), skip_layers=[0])
    torch.testing.assert_close(hidden(theirs), hidden(fused), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("form", ["standard", "anchored"])
def test_fusion_layers_are_dropped_from_a_trained_fusion(
    form: str, layer: int, saved: Save, backbone: Backbone, tmp_path: Path
) -> None:
    """What is left in the other layer is what was trained there."""
    sources = {"films": saved("films", 0), "meals": saved("meals", 1)}
    fused = backbone.load()
    add_standard_fusion(fused, sources)
    if form == "anchored":
        anchor_fusion(fused, list(sources), 4, {})
    randomise(fused, "adapter_fusion_layer", seed=3, scale=0.1)
    save_fused(fused, sources, tmp_path / "fusion")
    dropped = backbone.load()
    load_fusion(dropped, sources, fusion_in(tmp_path / "fusion", fusion=form, fusion_rank=4), (layer,))
    fused.set_active_adapters(Fuse(*sources), skip_layers=[layer])
    torch.testing.assert_close(hidden(dropped), hidden(fused), atol=1e-5, rtol=1e-5)
