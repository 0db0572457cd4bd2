"""Bottleneck adapters through AdapterHub (Houlsby et al. 2019; Pfeiffer et al. 2021 for the FFN-only variant).

Layers may be left without (AdapterDrop, Rücklé et al. 2021): those at the bottom earn least and cost most, because
the backward pass ends at the lowest adapter.

``A(h) = h + W_up gelu(W_down h + b_down) + b_up`` on the output of each sub-layer, before the residual and LayerNorm;
2md + d + m parameters a site, two sites a layer ("houlsby") or the one after the FFN ("pfeiffer").
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import adapters
from torch import nn

from pipeline.methods.saved import SavedModules, check_config
from pipeline.models.layout import kept_indices
from pipeline.models.switching import check_task_name
from pipeline.models.tensors import fill, in_layers, layer_of, read_tensors
from pipeline.system.errors import PipelineError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Sites = Literal["houlsby", "pfeiffer"]
ADAPTER_FILE = "adapter.safetensors"
ADAPTER_CONFIG = "adapter_config.json"


def add_adapter(
    backbone: PreTrainedModel, name: str, sites: Sites, bottleneck: int, drop_layers: Collection[int] = ()
) -> None:
    """Put a fresh adapter into ``backbone``, except in ``drop_layers``; leave it alone trainable and active.

    Raises:
        PipelineError: ``bottleneck`` is wider than the backbone.
    """
    width = backbone.config.hidden_size
    if bottleneck > width:
        raise PipelineError(f"bottleneck {bottleneck} is wider than the backbone ({width}): choose a smaller one")
    config_class = adapters.DoubleSeqBnConfig if sites == "houlsby" else adapters.SeqBnConfig
    adapters.init(backbone)
    check_task_name(name)
    config = config_class(
        reduction_factor=reduction_factor(width, bottleneck),
        non_linearity="gelu",
        init_weights="houlsby",
        leave_out=sorted(drop_layers),
    )
    backbone.add_adapter(name, config=config)
    backbone.train_adapter(name)


def reduction_factor(width: int, bottleneck: int) -> float:
    """The factor r for which AdapterHub's ``int(width // r)`` is ``bottleneck``, for any pair of the two.

    The exact quotient is off by one where floating point rounds it up (1 <= m <= d has such m for most d); half a
    unit more in the divisor then keeps the integer part.
    """
    exact = width / bottleneck
    return exact if int(width // exact) == bottleneck else width / (bottleneck + 0.5)


def train_layernorms(backbone: nn.Module, drop_layers: Collection[int] = ()) -> None:
    """Unfreeze the LayerNorms, as Houlsby et al. do; the artifact then needs them beside the adapter."""
    for parameter in layernorm_parameters(backbone, drop_layers).values():
        parameter.requires_grad_(True)


def layernorm_parameters(backbone: nn.Module, drop_layers: Collection[int] = ()) -> dict[str, nn.Parameter]:
    """The parameters of the LayerNorms that train with adapters everywhere but in ``drop_layers``."""
    return {
        f"{name}.{key}": parameter
        for name, module in backbone.named_modules()
        if isinstance(module, nn.LayerNorm) and has_adapter(f"{name}.", drop_layers)
        for key, parameter in module.named_parameters()
    }


def load_layernorms(
    backbone: nn.Module, file: Path, saved: SavedModules, drop_layers: Collection[int] = ()
) -> Collection[str]:
    """Load the LayerNorms that trained with an adapter; those in ``drop_layers`` stay as they were pretrained.

    Returns:
        The names of the parameters that are no longer as they were pretrained.

    Raises:
        PipelineError: the file is not what the recipe makes.
    """
    tensors = read_tensors(file, layernorm_parameters(backbone, saved.recipe.drop_layers), saved.remedy)
    kept = layernorm_parameters(backbone, {*saved.recipe.drop_layers, *drop_layers})
    fill(kept, tensors)
    return kept.keys()


def has_adapter(name: str, drop_layers: Collection[int]) -> bool:
    """Whether the parameter ``name`` stands in a layer that keeps its adapters.

    The embeddings go with layer 0: below the lowest adapter the backbone is as it was pretrained.
    """
    return (layer_of(name) or 0) not in drop_layers


def save_adapter(backbone: PreTrainedModel, name: str, folder: Path) -> None:
    """Write ``adapter_config.json`` and ``ADAPTER_FILE`` as stock AdapterHub does."""
    backbone.save_adapter(str(folder), name, with_head=False, use_safetensors=True)


def begin_as(backbone: PreTrainedModel, name: str, saved: SavedModules) -> None:
    """Give the adapter ``name`` the weights of a saved one; what that has in other layers is left out.

    Raises:
        PipelineError: the files are not what the saved one's recipe makes, or the adapter is of another shape.
    """
    trained = kept_indices(backbone, saved.recipe.drop_layers)
    config = {**backbone.adapters_config.get(name).to_dict(), "leave_out": sorted(saved.recipe.drop_layers)}
    check_config(saved.folder / ADAPTER_CONFIG, saved.task, config, saved.remedy)
    marks = f".adapters.{name}.", f".adapters.{saved.task}."
    own = {key.replace(*marks): tensor for key, tensor in backbone.named_parameters() if marks[0] in key}
    fill(own, read_tensors(saved.folder / ADAPTER_FILE, in_layers(own, trained), saved.remedy))


def load_adapter(backbone: PreTrainedModel, name: str, saved: SavedModules, drop_layers: Collection[int] = ()) -> None:
    """Load a saved adapter under ``name``, frozen, without its part in ``drop_layers``.

    The caller has checked that it was made for this backbone. AdapterHub's own ``load_adapter`` is not used: it loads
    every tensor of the file whose name the model has, the backbone's too.

    Raises:
        PipelineError: the files are not what the recipe makes.
    """
    recipe = saved.recipe
    if recipe.adapter != "houlsby" and recipe.adapter != "pfeiffer":
        raise PipelineError(
            f"{saved.folder}: its recipe makes {recipe.adapter}, which is no bottleneck: {saved.remedy}"
        )
    add_adapter(backbone, name, recipe.adapter, recipe.bottleneck, {*recipe.drop_layers, *drop_layers})
    begin_as(backbone, name, saved)
    backbone.requires_grad_(False)
