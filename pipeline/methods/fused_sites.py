"""Our fusion layers in AdapterHub's sites, and their file: tensors numbered by site, from the bottom up."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Self

from adapters.composition import Fuse
from adapters.methods.bottleneck import BottleneckLayer
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from pipeline.methods.bank import sites_of
from pipeline.methods.fusion_method import FusionMethod
from pipeline.methods.saved import SavedModules
from pipeline.models.tensors import fill, read_tensors


class FusionLayer(nn.Module, ABC):
    """Drop-in replacement for AdapterHub's fusion layer at one site."""

    @abstractmethod
    def over(self, kept: Sequence[int]) -> Self:
        """The same fusion over the adapters at positions ``kept``."""


def fused_sites(backbone: nn.Module, members: Sequence[str]) -> list[tuple[BottleneckLayer, Any]]:
    """The sites that have a fusion over the adapters ``members``, from the bottom up, each with its layer."""
    name = Fuse(*members).name
    sites = (site for site in sites_of(backbone) if name in site.adapter_fusion_layer)
    return [(site, site.adapter_fusion_layer[name]) for site in sites]


class SiteFusion(FusionMethod):
    """A form of :class:`FusionLayer`. Its file also holds the target's adapter if that trained with the fusion."""

    file: str

    def save(self, backbone: PreTrainedModel, members: Sequence[str], saved: SavedModules) -> None:
        tensors = {
            f"{number}.{key}": tensor.detach().cpu().clone()
            for number, (site, fusion) in enumerate(fused_sites(backbone, members))
            for key, tensor in _trained(site, fusion, saved).items()
        }
        saved.folder.mkdir(parents=True, exist_ok=True)
        save_file(tensors, saved.folder / self.file, {"sources": ",".join(members)})

    def load(
        self, backbone: PreTrainedModel, members: Sequence[str], saved: SavedModules, trained: Sequence[int]
    ) -> None:
        sites = fused_sites(backbone, members)
        per_layer = len({site.location_key for site, _ in sites})
        parameters: dict[str, Tensor] = {}
        for position, (site, fusion) in enumerate(sites):
            # The file numbers the sites of all trained layers.
            number = trained.index(site.layer_idx) * per_layer + position % per_layer
            parameters |= {f"{number}.{key}": tensor for key, tensor in _trained(site, fusion, saved).items()}
        any_site = _trained(*sites[0], saved).items()  # all have the same shapes
        expected = {f"{number}.{key}": tensor for number in range(len(trained) * per_layer) for key, tensor in any_site}
        fill(parameters, read_tensors(saved.folder / self.file, expected, saved.remedy))


def _trained(site: BottleneckLayer, fusion: nn.Module, saved: SavedModules) -> Mapping[str, Tensor]:
    adapter = site.adapters[saved.task].named_parameters() if saved.recipe.form.trains_own else ()
    return {**dict(fusion.named_parameters()), **{f"own.{key}": tensor for key, tensor in adapter}}
