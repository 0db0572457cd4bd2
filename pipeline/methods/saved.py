"""What a kind of adapter and a form of fusion implement: add to a backbone, save, and load by the recipe.

:mod:`pipeline.methods.registry` has the tables of kinds and forms.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import adapters
from adapters import AdapterConfig
from adapters.composition import Fuse
from adapters.methods.adapter_layer_base import AdapterLayerBase
from adapters.methods.bottleneck import BottleneckLayer
from adapters.methods.lora import LoRAMergedLinear
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from pipeline.models.layout import TaskSite, base_of, check_task_name, kept_indices, layers_of
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


def begin_as(
    backbone: PreTrainedModel, name: str, saved: SavedModules, known: Mapping[tuple[str, str], Tensor] | None = None
) -> None:
    """Load a saved adapter into AdapterHub's adapter ``name`` of the same shape, in the saved one's layers.

    ``known`` are its :func:`adapter_parameters`, which are slow to find, if they are known.
    """
    parameters = adapter_parameters(backbone, name) if known is None else known
    dropped = sorted(saved.recipe.adapter.drop_layers)
    config = {**backbone.adapters_config.get(name).to_dict(), "leave_out": dropped}
    check_config(saved.folder / ADAPTER_CONFIG, saved.task, config, saved.remedy)
    named = {f"{before}{saved.task}{after}": tensor for (before, after), tensor in parameters.items()}
    trained = kept_indices(backbone, dropped)
    fill(named, read_tensors(saved.folder / ADAPTER_FILE, in_layers(named, trained), saved.remedy))


def adapter_parameters(backbone: PreTrainedModel, name: str) -> dict[tuple[str, str], Tensor]:
    """The parameters of AdapterHub's adapter ``name``, keyed by the parts of their names before and after ``name``."""
    places = {module.adapter_modules_name for module in backbone.modules() if isinstance(module, AdapterLayerBase)}
    mark = re.compile(rf"(.*\.(?:{'|'.join(sorted(places))})\.){re.escape(name)}(\..*)")
    matches = ((mark.fullmatch(key), tensor) for key, tensor in backbone.named_parameters())
    return {(match[1], match[2]): tensor for match, tensor in matches if match is not None}


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


class FusionMethod:
    """A form of fusion: its layers in AdapterHub's sites, their file, and what training them adds to the loss.

    ``members`` are the names of the adapters that it mixes, in order. Its settings are in ``pipeline.settings.parts``.
    """

    file: str
    """It has the tensors of all fusion layers, numbered by site from the bottom up. If the target's adapter trained
    with the fusion, its tensors are there too."""

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


def replace_layers(backbone: nn.Module, members: Sequence[str], make: Callable[[Any], FusionLayer]) -> None:
    """Replace each layer of the fusion over ``members`` by ``make(layer)``, on its device and in its mode."""
    for site, stock in fused_sites(backbone, members):
        fresh = make(stock).to(stock.query.weight.device).train(stock.training)
        site.adapter_fusion_layer[Fuse(*members).name] = fresh


def sites_of(backbone: nn.Module) -> list[BottleneckLayer]:
    """AdapterHub's bottleneck and fusion sites, from the bottom up."""
    return [module for module in backbone.modules() if isinstance(module, BottleneckLayer)]
