"""A fusion over some of its sources is the same fusion with the other scores at minus infinity."""

import adapters
import pytest
import torch
from adapters.composition import Fuse
from transformers import BertModel, PreTrainedModel

from pipeline.methods.attention import source_shares
from pipeline.methods.registry import load_fusion, prune_fusion, use_fusion_implementation
from pipeline.methods.saved import SavedModules
from pipeline.models.backbone import Backbone
from tests.pipeline.methods.adapted import (
    PADDED,
    add_standard_fusion,
    hidden,
    randomise,
    save_fused,
    save_sources,
    saved_modules,
)

NAMES = ("films", "meals", "pairs")


@pytest.fixture(scope="module")
def sources(backbone: Backbone, tmp_path_factory: pytest.TempPathFactory) -> dict[str, SavedModules]:
    return save_sources(backbone, NAMES, tmp_path_factory.mktemp("sources"))


@pytest.fixture(params=["fast", "stock"])
def fused(request, backbone: Backbone, sources: dict[str, SavedModules]) -> PreTrainedModel:
    encoder = backbone.load()
    add_standard_fusion(encoder, sources)
    randomise(encoder, "adapter_fusion_layer", seed=3, scale=0.1)
    use_fusion_implementation(encoder, request.param)
    return encoder.requires_grad_(False).eval()


def test_shares_are_the_mean_attention_of_tokens(fused: PreTrainedModel) -> None:
    """By hand, from AdapterHub's own numbers: 27 tokens at four sites."""
    found = fused(**PADDED, output_adapter_fusion_attentions=True).adapter_fusion_attentions["films,meals,pairs"]
    sites = [torch.from_numpy(site) for layer in found.values() for site in layer.values()]
    tokens = torch.cat([site[PADDED["attention_mask"].bool()] for site in sites])
    assert tokens.shape == (4 * 27, 3)
    halves = [{name: tensor[rows] for name, tensor in PADDED.items()} for rows in (slice(0, 2), slice(2, 4))]
    shares = source_shares(fused, NAMES, halves)
    assert list(shares) == list(NAMES)
    assert list(shares.values()) == pytest.approx(tokens.mean(dim=0).tolist(), abs=1e-6)
    assert sum(shares.values()) == pytest.approx(1.0)


@pytest.mark.parametrize("kept", [("films", "pairs"), ("pairs", "meals"), ("films", "meals"), ("pairs",)])
def test_leaving_sources_out_renormalises_the_softmax(kept, fused, backbone, sources) -> None:
    """The same as fusing the kept adapters with the trained Q, K and V from the beginning."""
    trained = {name.replace("films,meals,pairs", "*"): p.clone() for name, p in fused.named_parameters()}
    names = prune_fusion(fused, NAMES, kept)
    assert names == [name for name in NAMES if name in kept]
    expected = backbone.load()
    add_standard_fusion(expected, {name: sources[name] for name in names})
    with torch.no_grad():
        for name, parameter in expected.named_parameters():
            if "adapter_fusion_layer" in name:
                parameter.copy_(trained[name.replace(",".join(names), "*")])
    torch.testing.assert_close(hidden(fused, PADDED), hidden(expected, PADDED), atol=1e-5, rtol=1e-5)
    assert not [name for name, _ in fused.named_parameters() if any(f".{out}." in name for out in {*NAMES} - {*kept})]
    assert not any(parameter.requires_grad for parameter in fused.parameters())


@pytest.mark.parametrize("kept", [("films", "pairs"), ("meals",)])
def test_stock_adapterhub_loads_a_pruned_fusion(kept, fused, backbone, backbone_folder, sources, tmp_path) -> None:
    prune_fusion(fused, NAMES, kept)
    save_fused(fused, kept, tmp_path / "pruned")
    ours, theirs = backbone.load(), BertModel.from_pretrained(backbone_folder, add_pooling_layer=False)
    pruned = saved_modules("films", tmp_path / "pruned", trainable="fusion", fusion="standard")
    load_fusion(ours, {name: sources[name] for name in kept}, pruned)
    adapters.init(theirs)
    for name in kept:
        theirs.load_adapter(str(sources[name].folder), use_safetensors=True)
    theirs.load_adapter_fusion(str(tmp_path / "pruned"), use_safetensors=True)
    theirs.set_active_adapters(Fuse(*kept))
    for loaded in (ours, theirs):
        torch.testing.assert_close(hidden(loaded, PADDED), hidden(fused, PADDED), atol=1e-5, rtol=1e-5)
