"""Adapters of our own, whose modules stand in a :class:`~pipeline.models.switching.TaskSite` of each layer."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import save_file
from torch import nn
from transformers import PreTrainedModel

from pipeline.methods.saved import SavedModules
from pipeline.models.layout import layers_of
from pipeline.models.tensors import fill, read_tensors
from pipeline.settings.recipe import Recipe

MODULES_FILE = "modules.safetensors"
"""The trained tensors by their names in the backbone."""


@dataclass(frozen=True)
class SiteAdapter:
    """An :class:`~pipeline.methods.registry.AdapterMethod`.

    Args:
        site: the attribute of a layer that holds the site.
        add: as the protocol says.
    """

    site: str
    add: Callable[[PreTrainedModel, Sequence[str], Recipe], None]

    def save(self, backbone: PreTrainedModel, task: str, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {name: tensor.detach().cpu().clone() for name, tensor in _tensors(backbone, task).items()}
        save_file(tensors, folder / MODULES_FILE)

    def load(self, backbone: PreTrainedModel, saved: SavedModules, drop_layers: Collection[int]) -> None:
        self.add(backbone, [saved.task], saved.recipe)
        own = _tensors(backbone, saved.task)
        fill(own, read_tensors(saved.folder / MODULES_FILE, own, saved.remedy))
        # Only now: a tensor that layers share may be in the file under its name in a layer that is left out.
        for index in set(drop_layers) - set(saved.recipe.adapter.drop_layers):
            del getattr(layers_of(backbone)[index], self.site).tasks[saved.task]


def _tensors(backbone: PreTrainedModel, task: str) -> dict[str, nn.Parameter]:
    return {name: tensor for name, tensor in backbone.named_parameters() if f".tasks.{task}." in name}
