"""Adapters that AdapterHub implements: one configuration describes them, and AdapterHub loads what is saved."""

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import adapters
from adapters import AdapterConfig
from adapters.methods.adapter_layer_base import AdapterLayerBase
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel

from pipeline.methods.saved import SavedModules, check_config
from pipeline.models.layout import kept_indices
from pipeline.models.switching import check_task_name
from pipeline.models.tensors import fill, in_layers, read_tensors
from pipeline.settings.recipe import Recipe

ADAPTER_FILE = "adapter.safetensors"
ADAPTER_CONFIG = "adapter_config.json"


@dataclass(frozen=True)
class StockAdapter:
    """An :class:`~pipeline.methods.registry.AdapterMethod` from AdapterHub's configuration.

    Args:
        config: the configuration, of a recipe and the backbone's; it raises a PipelineError for what cannot be.
    """

    config: Callable[[Recipe, PretrainedConfig], AdapterConfig]

    def add(self, backbone: PreTrainedModel, tasks: Sequence[str], recipe: Recipe) -> None:
        for task in tasks:
            self.put_in(backbone, task, recipe, recipe.adapter.drop_layers)

    def put_in(self, backbone: PreTrainedModel, name: str, recipe: Recipe, drop_layers: Collection[int]) -> None:
        """Add one fresh adapter, alone trainable and active."""
        check_task_name(name)
        config = self.config(recipe, backbone.config).replace(leave_out=sorted(drop_layers))
        adapters.init(backbone)
        backbone.add_adapter(name, config=config)
        backbone.train_adapter(name)

    def save(self, backbone: PreTrainedModel, task: str, folder: Path) -> None:
        """Write ``adapter_config.json`` and ``adapter.safetensors`` as stock AdapterHub does."""
        backbone.save_adapter(str(folder), task, with_head=False, use_safetensors=True)

    def load(self, backbone: PreTrainedModel, saved: SavedModules, drop_layers: Collection[int]) -> None:
        self.load_as(saved.task, backbone, saved, drop_layers)

    def load_as(self, name: str, backbone: PreTrainedModel, saved: SavedModules, drop_layers: Collection[int]) -> None:
        """Load a saved adapter under ``name``, frozen.

        AdapterHub's own ``load_adapter`` would load every tensor of the file that the model has, the backbone's too.
        """
        self.put_in(backbone, name, saved.recipe, {*saved.recipe.adapter.drop_layers, *drop_layers})
        begin_as(backbone, name, saved)
        backbone.requires_grad_(False)


def begin_as(backbone: PreTrainedModel, name: str, saved: SavedModules) -> None:
    """Give the adapter ``name`` the weights of a saved one, in the layers that have it.

    Raises:
        PipelineError: the files are not what the saved adapter's recipe makes, or the adapter has another shape.
    """
    check_saved_config(backbone, name, saved)
    own = _tensors(backbone, name, saved.task)
    trained = kept_indices(backbone, saved.recipe.adapter.drop_layers)
    fill(own, read_tensors(saved.folder / ADAPTER_FILE, in_layers(own, trained), saved.remedy))


def check_saved_config(backbone: PreTrainedModel, name: str, saved: SavedModules) -> None:
    """Check the configuration of a saved adapter against that of the adapter ``name`` in ``backbone``.

    Raises:
        PipelineError: they differ in more than the layers that ``backbone`` leaves out.
    """
    config = {**backbone.adapters_config.get(name).to_dict(), "leave_out": sorted(saved.recipe.adapter.drop_layers)}
    check_config(saved.folder / ADAPTER_CONFIG, saved.task, config, saved.remedy)


def _tensors(backbone: PreTrainedModel, name: str, saved_as: str) -> dict[str, Tensor]:
    """The parameters of the adapter ``name`` by the names that they have in the file of an adapter ``saved_as``."""
    places = {module.adapter_modules_name for module in backbone.modules() if isinstance(module, AdapterLayerBase)}
    mark = re.compile(rf"\.({'|'.join(sorted(places))})\.{re.escape(name)}\.")
    return {
        mark.sub(lambda place: f".{place[1]}.{saved_as}.", key): tensor
        for key, tensor in backbone.named_parameters()
        if mark.search(key)
    }
