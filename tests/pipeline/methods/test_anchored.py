"""Anchored fusion: it begins as one adapter, its fast form is its plain one, and AdapterHub can run what it becomes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import adapters
import pytest
import torch
from adapters.composition import Fuse
from torch import nn

from pipeline.methods import fast_fusion
from pipeline.methods.anchored import AnchoredFusion, anchor_fusion
from pipeline.methods.fast_fusion import FusionSite
from pipeline.methods.houlsby import load_adapter
from pipeline.methods.registry import use_fusion_implementation
from pipeline.methods.saved import SavedModules
from pipeline.models.backbone import Backbone
from tests.pipeline.methods.adapted import add_standard_fusion, hidden, randomise, save_fused, trainable
from tests.pipeline.methods.test_fast_fusion import assert_same, fused_model

SOURCES = ("films", "pairs", "scores")


@pytest.fixture
def folders(saved: Callable[..., SavedModules]) -> dict[str, SavedModules]:
    return {name: saved(name, seed) for seed, name in enumerate(SOURCES)}


def anchored(backbone: Backbone, folders: dict[str, SavedModules], bias: float = 3.0, rank: int = 4) -> Any:
    encoder = backbone.load()
    add_standard_fusion(encoder, folders)
    anchor_fusion(encoder, SOURCES, rank, {"pairs": bias})
    return encoder


def layers(encoder: nn.Module) -> list[AnchoredFusion]:
    return [module for module in encoder.modules() if isinstance(module, AnchoredFusion)]


@pytest.mark.parametrize("implementation", ["fast", "stock"])
def test_it_begins_as_the_adapter_it_is_anchored_at(
    implementation: Any, backbone: Backbone, folders: dict[str, SavedModules]
) -> None:
    encoder, alone = anchored(backbone, folders, bias=40.0), backbone.load()
    use_fusion_implementation(encoder, implementation)
    load_adapter(alone, "pairs", folders["pairs"])
    torch.testing.assert_close(hidden(encoder), hidden(alone), atol=1e-5, rtol=0)


def test_the_bias_is_the_score_it_begins_with(backbone: Backbone, folders: dict[str, SavedModules]) -> None:
    """exp(3) / (exp(3) + 2) = .9094 for the anchor, .0453 for each of the two others."""
    encoder = anchored(backbone, folders)
    use_fusion_implementation(encoder, "fast")
    encoder.eval()
    found = encoder(torch.tensor([[5, 6]]), output_adapter_fusion_attentions=True).adapter_fusion_attentions
    for sites in found[Fuse(*SOURCES).name].values():
        for attention in sites.values():
            assert attention[0, 0] == pytest.approx([0.0453, 0.9094, 0.0453], abs=1e-4)


def test_it_has_the_parameters_of_its_equation(backbone: Backbone, folders: dict[str, SavedModules]) -> None:
    encoder, rank, width = anchored(backbone, folders), 4, backbone.hidden_size
    assert trainable(encoder) == 2 * backbone.layers * (4 * rank * width + rank + len(SOURCES))


def anchored_model(rank: int, **settings: Any) -> Any:
    model = fused_model(**settings)
    names = next(iter(model.adapters_config.fusions)).split(",")
    anchor_fusion(model, names, rank, {names[0]: 1.0})
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "fusion" in name:
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model.double()


@pytest.mark.covering(1)
@pytest.mark.parametrize("forms", [(q, v) for q in ("folded", "half", "plain") for v in ("folded", "plain")])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("rank", [1, 5, 24])
def test_every_fast_form_is_the_plain_one(
    rank: int, dropout: float, forms: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    fuse = FusionSite._fuse
    monkeypatch.setattr(FusionSite, "_fuse", lambda *given: calls.append(1) or fuse(*given))
    monkeypatch.setattr(fast_fusion, "cheapest_forms", lambda *_: forms)
    assert_same(anchored_model(rank, dropout=dropout))
    assert len(calls) == 4


def test_stock_adapterhub_runs_what_was_saved(
    backbone: Backbone, folders: dict[str, SavedModules], tmp_path: Path
) -> None:
    encoder = anchored(backbone, folders)
    randomise(encoder, "adapter_fusion_layer", seed=5)
    with torch.no_grad():
        for layer in layers(encoder):
            layer.score_bias.copy_(torch.tensor([0.5, 2.0, -1.0]))
    save_fused(encoder, SOURCES, tmp_path / "fusion")
    stock = backbone.load()
    adapters.init(stock)
    for name, folder in folders.items():
        stock.load_adapter(str(folder.folder), load_as=name, use_safetensors=True)
    stock.load_adapter_fusion(str(tmp_path / "fusion"), use_safetensors=True, set_active=True)
    assert not layers(stock)
    torch.testing.assert_close(hidden(stock), hidden(encoder), atol=2e-4, rtol=0)
