"""The attention of a fusion, site by site, against AdapterHub's own numbers."""

from pathlib import Path

import pytest
import torch

from pipeline.methods.attention import attention_table, site_attention
from pipeline.methods.registry import use_fusion_implementation
from pipeline.methods.saved import SavedModules
from pipeline.models.backbone import Backbone
from pipeline.models.lean import make_lean
from tests.pipeline.methods.adapted import PADDED, add_standard_fusion, randomise, save_sources

NAMES = ("meals", "films")


@pytest.fixture
def sources(backbone: Backbone, tmp_path: Path, sites: str) -> dict[str, SavedModules]:
    return save_sources(backbone, NAMES, tmp_path, sites)


@pytest.mark.parametrize("sites", ["houlsby", "pfeiffer"])
@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("implementation", ["fast", "stock"])
def test_every_site_has_the_mean_over_its_tokens(implementation, pooling, sites, sources, backbone) -> None:
    encoder = backbone.load()
    add_standard_fusion(encoder, sources)
    randomise(encoder, "adapter", seed=3)
    use_fusion_implementation(encoder, implementation)
    make_lean(encoder, pooling)
    encoder.requires_grad_(False).eval()
    found = encoder(**PADDED, output_adapter_fusion_attentions=True).adapter_fusion_attentions["meals,films"]
    halves = [{name: tensor[rows] for name, tensor in PADDED.items()} for rows in (slice(0, 2), slice(2, 4))]
    table = attention_table(site_attention(encoder, NAMES, halves), NAMES)
    places = {"mh_adapter": "attention", "output_adapter": "ffn"}
    names = list(places) if sites == "houlsby" else ["output_adapter"]
    expected = []
    for layer in (0, 1):
        for name in names:
            values = torch.from_numpy(found[layer][name])
            seen = values[PADDED["attention_mask"].bool()[:, : values.shape[1]]]
            # With CLS pooling the last layer answers for the first token alone.
            assert len(seen) == (4 if pooling == "cls" and layer == 1 else 27)
            expected += [(layer, places[name], n, w) for n, w in zip(NAMES, seen.mean(dim=0).tolist(), strict=True)]
    assert list(table.columns) == ["layer", "site", "adapter", "weight"]
    for row, wanted in zip(table.itertuples(index=False), expected, strict=True):
        assert tuple(row)[:3] == wanted[:3]
        assert row.weight == pytest.approx(wanted[3], abs=1e-6)
    assert table.groupby(["layer", "site"])["weight"].sum().to_numpy() == pytest.approx(1.0)
