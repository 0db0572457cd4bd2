"""Fusion layers of our own in AdapterHub's sites, and their file: tensors numbered by site, from the bottom up."""

from collections.abc import Mapping, Sequence
from typing import Any, Self

from adapters.composition import Fuse
from adapters.methods.bottleneck import BottleneckLayer
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from pipeline.methods.bank import sites_of
from pipeline.methods.saved import SavedModules
from pipeline.models.tensors import fill, read_tensors


class FusionLayer(nn.Module):
    """A fusion layer of our own at one site, with the call of AdapterHub's."""

    def over(self, kept: Sequence[int]) -> Self:
        """The same fusion over some of its adapters, by their positions."""
        raise NotImplementedError


def fused_sites(backbone: nn.Module, members: Sequence[str]) -> list[tuple[BottleneckLayer, Any]]:
    """The sites that have a fusion over the adapters ``members``, from the bottom up, each with its layer."""
    name = Fuse(*members).name
    sites = (site for site in sites_of(backbone) if name in site.adapter_fusion_layer)
    return [(site, site.adapter_fusion_layer[name]) for site in sites]


def save_sites(
    backbone: PreTrainedModel, members: Sequence[str], own: str | None, saved: SavedModules, file: str
) -> None:
    """Write the fusion layers over ``members`` to ``file``, with the adapter ``own`` where one trained with them."""
    sites = enumerate(fused_sites(backbone, members))
    tensors = {
        f"{number}.{key}": tensor.detach().cpu().clone()
        for number, (site, fusion) in sites
        for key, tensor in _trained(site, fusion, own).items()
    }
    saved.folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, saved.folder / file, {"sources": ",".join(members)})


def load_sites(
    backbone: PreTrainedModel,
    members: Sequence[str],
    own: str | None,
    saved: SavedModules,
    file: str,
    trained: Sequence[int],
) -> None:
    """Load what :func:`save_sites` wrote into fresh layers of the same kind.

    ``trained`` are the layers that had a fusion when it was saved; ``backbone`` may have it in fewer. The file must be
    what the recipe makes.
    """
    sites = fused_sites(backbone, members)
    per_layer = len({site.location_key for site, _ in sites})
    parameters: dict[str, Tensor] = {}
    for position, (site, fusion) in enumerate(sites):
        # The file numbers the sites of all trained layers.
        number = trained.index(site.layer_idx) * per_layer + position % per_layer
        parameters |= {f"{number}.{key}": tensor for key, tensor in _trained(site, fusion, own).items()}
    any_site = _trained(*sites[0], own).items()  # all have the same shapes
    expected = {f"{number}.{key}": tensor for number in range(len(trained) * per_layer) for key, tensor in any_site}
    fill(parameters, read_tensors(saved.folder / file, expected, saved.remedy))


def _trained(site: BottleneckLayer, fusion: nn.Module, own: str | None) -> Mapping[str, Tensor]:
    adapter = {} if own is None else {f"own.{key}": tensor for key, tensor in site.adapters[own].named_parameters()}
    return {**dict(fusion.named_parameters()), **adapter}
