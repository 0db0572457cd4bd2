"""Prune a fusion to the adapters that get the most attention (Rücklé et al. 2021).

Leaving adapters out only renormalises the softmax over the others: Q, K and V stay as trained.
"""

from collections.abc import Collection, Iterable, Sequence

import numpy as np
from adapters.composition import Fuse
from torch import Tensor
from transformers import PreTrainedModel

from pipeline.methods.anchored import AnchoredFusion
from pipeline.methods.attention import site_attention
from pipeline.methods.bank import sites_of


def source_shares(
    backbone: PreTrainedModel, sources: Sequence[str], batches: Iterable[dict[str, Tensor]]
) -> dict[str, float]:
    """The attention to each source, averaged over tokens and sites; the shares add up to one."""
    sites = site_attention(backbone, sources, batches)
    total = sum((site.total for site in sites), np.zeros(len(sources)))
    tokens = sum(site.tokens for site in sites)
    return dict(zip(sources, (total / tokens).tolist(), strict=True))


def prune_fusion(backbone: PreTrainedModel, sources: Sequence[str], kept: Collection[str]) -> list[str]:
    """Put the trained fusion layers over ``kept`` alone, frozen and active; returns those in the fusion's order."""
    names = [name for name in sources if name in kept]
    whole, part = Fuse(*sources), Fuse(*names)
    sites = sites_of(backbone)
    trained = {site: site.adapter_fusion_layer[whole.name] for site in sites if whole.name in site.adapter_fusion_layer}
    backbone.set_active_adapters(None)
    backbone.delete_adapter_fusion(whole)
    for name in set(sources) - set(names):
        backbone.delete_adapter(name)
    # AdapterHub knows a fusion by the names of its adapters; under the new name it makes fresh layers.
    backbone.add_adapter_fusion(part)
    for site in sites:
        site.adapter_fusion_layer.clear()
        if site in trained:
            layer = trained[site]
            if isinstance(layer, AnchoredFusion):
                layer = layer.over([sources.index(name) for name in names])
            site.adapter_fusion_layer[part.name] = layer
    backbone.set_active_adapters(part)
    return names
