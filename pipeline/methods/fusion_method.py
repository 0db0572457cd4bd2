"""The interface of a form of fusion; :mod:`pipeline.methods.fusion` has the table of forms."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Self

from adapters.composition import Fuse
from adapters.methods.bottleneck import BottleneckLayer
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from pipeline.methods.bank import sites_of
from pipeline.methods.saved import SavedModules
from pipeline.models.tensors import fill, read_tensors
from pipeline.settings.recipe import Recipe


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


class FusionMethod:
    """A form of fusion: its layers in AdapterHub's sites, their file, and what training them adds to the loss.

    ``members`` are the names of the adapters that it mixes, in order. Its settings are in ``pipeline.settings.parts``.
    """

    file: str
    """It has the tensors of each :class:`FusionLayer`, numbered by site from the bottom up, and those of the target's
    adapter if that trained with the fusion."""

    def misfit(self, recipe: Recipe, width: int) -> str:
        """Why the recipe cannot work in a backbone of this width; empty if it can."""
        return ""

    def put_in(
        self, backbone: PreTrainedModel, members: Sequence[str], task: str, recipe: Recipe, anchor: str | None
    ) -> None:
        """Replace AdapterHub's fresh fusion layers over ``members`` with fresh ones of this form.

        Args:
            task: the fusion's target.
            anchor: the member that the fusion is initialised to, if the form has an anchor.

        Raises:
            PipelineError: the recipe cannot work with these members or this backbone.
        """

    def save(self, backbone: PreTrainedModel, members: Sequence[str], saved: SavedModules) -> None:
        """Write the fusion that was trained for ``saved`` into its folder, which is created if missing."""
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
        """Load a saved fusion into fresh layers.

        Args:
            trained: the layers that had a fusion when it was saved; ``backbone`` may have fewer.

        Raises:
            PipelineError: a file is missing, damaged, or does not fit the recipe.
        """
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

    def without_decay(self, backbone: PreTrainedModel) -> set[str]:
        """Names of the parameters of ``backbone`` that are exempt from weight decay."""
        return set()

    def penalty(self, backbone: PreTrainedModel, recipe: Recipe) -> Callable[[], Tensor] | None:
        """A term to add to the loss at every step, if any."""
        return None

    def stock_lacks(self, recipe: Recipe, files: Collection[str]) -> str:
        """Why stock AdapterHub cannot compute the fusion that an artifact saved as ``files``; empty if it can."""
        return ""

    def as_adapters(self, backbone: PreTrainedModel, members: Sequence[str]) -> list[dict[str, Tensor]] | None:
        """Weights and biases of an equivalent bottleneck at each site; None if stock AdapterHub has this fusion."""
        return None


def _trained(site: BottleneckLayer, fusion: nn.Module, saved: SavedModules) -> Mapping[str, Tensor]:
    adapter = site.adapters[saved.task].named_parameters() if saved.recipe.form.trains_own else ()
    return {**dict(fusion.named_parameters()), **{f"own.{key}": tensor for key, tensor in adapter}}
