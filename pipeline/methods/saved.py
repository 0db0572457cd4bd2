"""Add adapters to a backbone, save them, and load them by their recipe: AdapterHub's and ours."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import adapters
from adapters import AdapterConfig
from adapters.methods.adapter_layer_base import AdapterLayerBase
from adapters.methods.lora import LoRAMergedLinear
from safetensors.torch import save_file
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel

from pipeline.models.layout import base_of, kept_indices, layers_of
from pipeline.models.switching import TaskSite, check_task_name
from pipeline.models.tensors import fill, in_layers, read_tensors
from pipeline.settings.recipe import Recipe
from pipeline.system.errors import PipelineError, shortened
from pipeline.system.reading import read_json

ADAPTER_FILE = "adapter.safetensors"
ADAPTER_CONFIG = "adapter_config.json"
MODULES_FILE = "modules.safetensors"
"""The trained tensors of a :class:`SiteAdapter`, by their names in the backbone."""


@dataclass(frozen=True)
class SavedModules:
    """A task's adapter, or the fusion trained for it, in a folder. The recipe determines what the folder must hold."""

    task: str  # that it was trained for, also its name in AdapterHub's files
    recipe: Recipe
    folder: Path
    remedy: str = "train it again"  # what a user should do about a damaged file, for messages


def too_wide(key: str, size: int | None, width: int) -> str:
    """Error message if ``size``, which a recipe gives as ``key``, exceeds the backbone's width; else empty."""
    wide = size is not None and size > width
    return f"{key} {size} is more than the backbone's width ({width}): choose a smaller one" if wide else ""


@dataclass(frozen=True)
class StockAdapter:
    """A kind of adapter that AdapterHub implements: how it is added to a backbone, saved and loaded.

    All parameters that it adds train (``module_parameter_names``). Its settings, and whether fusion can mix it, are in
    ``pipeline.settings.parts``.
    """

    config: Callable[[Recipe, PretrainedConfig], AdapterConfig]
    within_width: tuple[str, ...] = ()  # flat keys of sizes that must not exceed the backbone's width
    stock_lacks: ClassVar[str] = ""
    """What stock AdapterHub lacks to compute the same from the saved files; empty: nothing."""

    def misfit(self, recipe: Recipe, width: int) -> str:
        """Why the recipe's adapter does not fit a backbone of this width; empty if it does."""
        sizes = recipe.flat()
        return next(filter(None, (too_wide(key, sizes[key], width) for key in self.within_width)), "")

    def add(self, backbone: PreTrainedModel, tasks: Sequence[str], recipe: Recipe) -> None:
        """Add a fresh adapter for each of ``tasks`` to all layers of ``backbone`` except the dropped ones.

        Raises a :class:`PipelineError` if the recipe is a :meth:`misfit`.
        """
        for task in tasks:
            self.put_in(backbone, task, recipe, recipe.adapter.drop_layers)

    def put_in(self, backbone: PreTrainedModel, name: str, recipe: Recipe, drop_layers: Collection[int]) -> None:
        """Add a fresh adapter, the only trainable and active one; raises a PipelineError if it does not fit."""
        check_task_name(name)
        if why := self.misfit(recipe, backbone.config.hidden_size):
            raise PipelineError(why)
        config = self.config(recipe, backbone.config).replace(leave_out=sorted(drop_layers))
        init_adapters(backbone)
        backbone.add_adapter(name, config=config)
        backbone.train_adapter(name)

    def save(self, backbone: PreTrainedModel, task: str, folder: Path) -> None:
        """Write the adapter of ``task`` as stock AdapterHub does, into a folder that is made if missing."""
        folder.mkdir(parents=True, exist_ok=True)
        backbone.save_adapter(str(folder), task, with_head=False, use_safetensors=True)

    def load(self, backbone: PreTrainedModel, saved: SavedModules, drop_layers: Collection[int]) -> None:
        """Load a saved adapter without its part in ``drop_layers``.

        Raises a :class:`PipelineError` if a file is missing, damaged or does not fit the recipe, or if the recipe is a
        :meth:`misfit`.
        """
        self.put_in(backbone, saved.task, saved.recipe, {*saved.recipe.adapter.drop_layers, *drop_layers})
        begin_as(backbone, saved.task, saved)


def init_adapters(backbone: PreTrainedModel) -> None:
    """Prepare ``backbone`` for AdapterHub's adapters without changing its function.

    AdapterHub 1.3 gives a joint projection of query, key and value (ModernBERT's) random biases if it has none.
    """
    before = {name for name, _ in backbone.named_parameters()}
    adapters.init(backbone)
    for name, module in backbone.named_modules():
        if isinstance(module, LoRAMergedLinear) and f"{name}.bias" not in before:
            module.bias = None


def begin_as(backbone: PreTrainedModel, name: str, saved: SavedModules) -> None:
    """Load a saved adapter into AdapterHub's adapter ``name`` of the same shape, in the saved one's layers."""
    read_into(adapter_parameters(backbone, name), backbone, name, saved)


def adapter_parameters(backbone: PreTrainedModel, name: str) -> dict[tuple[str, str], Tensor]:
    """The parameters of AdapterHub's adapter ``name``, keyed by the parts of their names before and after ``name``."""
    places = {module.adapter_modules_name for module in backbone.modules() if isinstance(module, AdapterLayerBase)}
    mark = re.compile(rf"(.*\.(?:{'|'.join(sorted(places))})\.){re.escape(name)}(\..*)")
    matches = ((mark.fullmatch(key), tensor) for key, tensor in backbone.named_parameters())
    return {(match[1], match[2]): tensor for match, tensor in matches if match is not None}


def read_into(
    parameters: Mapping[tuple[str, str], Tensor], backbone: PreTrainedModel, name: str, saved: SavedModules
) -> None:
    """:func:`begin_as` with known :func:`adapter_parameters`, which are slow to find."""
    dropped = sorted(saved.recipe.adapter.drop_layers)
    config = {**backbone.adapters_config.get(name).to_dict(), "leave_out": dropped}
    check_config(saved.folder / ADAPTER_CONFIG, saved.task, config, saved.remedy)
    named = {f"{before}{saved.task}{after}": tensor for (before, after), tensor in parameters.items()}
    trained = kept_indices(backbone, dropped)
    fill(named, read_tensors(saved.folder / ADAPTER_FILE, in_layers(named, trained), saved.remedy))


def check_config(file: Path, name: str, expected: Mapping[str, Any], remedy: str) -> None:
    """Check AdapterHub's configuration of the adapter or fusion ``name`` against the one that the recipe makes.

    We build nothing from the file, but stock AdapterHub does, and must get the same model. Raises a
    :class:`PipelineError` that names the first difference.
    """
    read = read_json(file, remedy)
    settings = read.get("config") if isinstance(read, dict) else None
    if not isinstance(settings, dict):
        raise PipelineError(f"{file}: not an AdapterHub configuration: {remedy}")
    actual, wanted = {**settings, "name": read.get("name")}, {**expected, "name": name}
    for key in sorted(actual.keys() | wanted.keys()):
        if key not in actual:
            difference = f"it lacks {key}"
        elif key not in wanted:
            difference = f"AdapterHub knows no {shortened(key)}"
        elif actual[key] != wanted[key]:
            difference = f"{key} is {shortened(actual[key])}, not {wanted[key]!r}"
        else:
            continue
        raise PipelineError(f"{file}: does not fit its recipe ({difference}): {remedy}")


@dataclass(frozen=True)
class SiteAdapter:
    """A kind of adapter that AdapterHub lacks, made of :class:`TaskSite` modules; as :class:`StockAdapter` to use."""

    add: Callable[[PreTrainedModel, Sequence[str], Recipe], None]
    stock_lacks: ClassVar[str] = "such modules"

    def misfit(self, recipe: Recipe, width: int) -> str:
        return ""

    def save(self, backbone: PreTrainedModel, task: str, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {name: tensor.detach().cpu().clone() for name, tensor in _site_tensors(backbone, task).items()}
        save_file(tensors, folder / MODULES_FILE)

    def load(self, backbone: PreTrainedModel, saved: SavedModules, drop_layers: Collection[int]) -> None:
        self.add(backbone, [saved.task], saved.recipe)
        tensors = _site_tensors(backbone, saved.task)
        fill(tensors, read_tensors(saved.folder / MODULES_FILE, tensors, saved.remedy))
        # Drop layers only after loading: the file may name a tensor that layers share after a dropped layer.
        for index in set(drop_layers) - set(saved.recipe.adapter.drop_layers):
            for part in (layers_of(backbone)[index], *(base_of(backbone) if index == 0 else [])):
                for module in part.modules():
                    if isinstance(module, TaskSite):
                        module.tasks.pop(saved.task)


def _site_tensors(backbone: PreTrainedModel, task: str) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in backbone.named_parameters() if f".tasks.{task}." in name}
