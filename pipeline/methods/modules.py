"""The modules of a task, of whatever kind a recipe names: put into a backbone, saved, loaded."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors.torch import save_file
from torch import nn

from pipeline.methods.houlsby import add_adapter, load_adapter, save_adapter, train_layernorms
from pipeline.methods.pal import add_pal
from pipeline.methods.prefix import add_prefix, token_states
from pipeline.methods.prefix_tuning import add_prefix_tuning, load_prefix_tuning, save_prefix_tuning
from pipeline.methods.saved import SavedModules
from pipeline.models.layout import layers_of
from pipeline.models.patches.norms import add_layernorms, replaced_norms
from pipeline.models.switching import activate, module_parameter_names
from pipeline.models.tensors import fill, read_tensors
from pipeline.settings.recipe import BOTTLENECKS, Recipe

if TYPE_CHECKING:
    from transformers import PreTrainedModel

MODULES_FILE = "modules.safetensors"
"""Of the kinds that AdapterHub has not: the trained tensors by their names in the backbone."""
_OURS = frozenset({"pal", "prefix"})


def add_modules(backbone: PreTrainedModel, tasks: Sequence[str], recipe: Recipe) -> None:
    """Put fresh modules for each of ``tasks`` into ``backbone``; the first task's are active.

    The modules train, and with "full+adapter" so does the backbone, but for LayerNorms that each task has its own of.

    Raises:
        PipelineError: sizes that the backbone has no room for.
    """
    starts = token_states(backbone, recipe.prefix_length) if recipe.adapter == "prefix" else None
    for task in tasks:
        if recipe.adapter == "pal":
            add_pal(backbone, task, recipe.pal_size, recipe.pal_heads, recipe.drop_layers)
        elif recipe.adapter == "prefix":
            assert starts is not None
            add_prefix(backbone, task, starts, recipe.drop_layers)
        elif recipe.adapter == "prefix-tuning":
            add_prefix_tuning(backbone, task, recipe.prefix_length, recipe.drop_layers)
        else:
            add_adapter(backbone, task, recipe.adapter, recipe.bottleneck, recipe.drop_layers)
        if recipe.train_layernorm and len(tasks) > 1:
            add_layernorms(backbone, task, recipe.drop_layers)
    own = module_parameter_names(backbone)
    for name, parameter in backbone.named_parameters():
        parameter.requires_grad_(recipe.trainable == "full+adapter" or name in own)
    if recipe.train_layernorm and len(tasks) == 1:
        train_layernorms(backbone, recipe.drop_layers)
    for norm in replaced_norms(backbone):
        norm.weight.requires_grad_(False)
        norm.bias.requires_grad_(False)
    activate(backbone, tasks[0])


def save_modules(backbone: PreTrainedModel, task: str, recipe: Recipe, folder: Path) -> None:
    """Write the modules of ``task``: what stock AdapterHub loads, or for kinds it has not ``modules.safetensors``."""
    if recipe.adapter in _OURS:
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {name: tensor.detach().cpu().clone() for name, tensor in _tensors(backbone, task).items()}
        save_file(tensors, folder / MODULES_FILE)
    elif recipe.adapter == "prefix-tuning":
        save_prefix_tuning(backbone, task, folder)
    else:
        save_adapter(backbone, task, folder)


def load_modules(backbone: PreTrainedModel, saved: SavedModules, drop_layers: Collection[int] = ()) -> None:
    """Load saved modules, frozen and active, without their part in ``drop_layers``.

    The caller has checked that they were made for this backbone.

    Raises:
        PipelineError: the files are not what the recipe makes.
    """
    task, recipe = saved.task, saved.recipe
    if recipe.adapter in BOTTLENECKS:
        load_adapter(backbone, task, saved, drop_layers)
        return
    if recipe.adapter == "prefix-tuning":
        load_prefix_tuning(backbone, saved, drop_layers)
        return
    if recipe.adapter == "pal":
        add_pal(backbone, task, recipe.pal_size, recipe.pal_heads, recipe.drop_layers)
    else:
        zero = torch.zeros(recipe.prefix_length, backbone.config.hidden_size)
        add_prefix(backbone, task, [zero] * len(layers_of(backbone)), recipe.drop_layers)
    own = _tensors(backbone, task)
    fill(own, read_tensors(saved.folder / MODULES_FILE, own, saved.remedy))
    # Only now: what layers share may be in the file under the name it has in a layer that is left out.
    for index in set(drop_layers) - set(recipe.drop_layers):
        del getattr(layers_of(backbone)[index], recipe.adapter).tasks[task]
    backbone.requires_grad_(False)
    activate(backbone, task)


def _tensors(backbone: PreTrainedModel, task: str) -> dict[str, nn.Parameter]:
    return {name: tensor for name, tensor in backbone.named_parameters() if f".tasks.{task}." in name}
