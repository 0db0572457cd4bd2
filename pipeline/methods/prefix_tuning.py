"""Prefix tuning as AdapterHub does it (Li & Liang 2021): L_p trained keys and values in every attention layer.

2 L_p d numbers a layer, twice those of a prefix of hidden states (:mod:`prefix`), whose keys and values come from the
backbone's projections. The flat form: the numbers themselves are trained, without the MLP that Li & Liang draw them
from while training, so that what is trained is what is kept.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

import adapters
from adapters.methods.prefix_tuning import PrefixTuningLayer

from pipeline.methods.houlsby import ADAPTER_CONFIG, ADAPTER_FILE, save_adapter
from pipeline.methods.saved import SavedModules, check_config
from pipeline.models.layout import layers_of
from pipeline.models.switching import check_task_name
from pipeline.models.tensors import fill, read_tensors
from pipeline.system.errors import PipelineError

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def add_prefix_tuning(backbone: PreTrainedModel, task: str, length: int, drop_layers: Collection[int] = ()) -> None:
    """Put fresh keys and values into ``backbone``, except in ``drop_layers``; leave them alone trainable and active.

    Raises:
        PipelineError: a DistilBERT, where AdapterHub adds one to the prefix's scores in batches with padding.
    """
    check_task_name(task)
    if backbone.config.model_type == "distilbert":
        raise PipelineError(
            "prefix-tuning on a DistilBERT: AdapterHub's depends on how much padding a batch has there: use --adapter"
            " prefix"
        )
    adapters.init(backbone)
    config = adapters.PrefixTuningConfig(flat=True, prefix_length=length, leave_out=sorted(drop_layers))
    backbone.add_adapter(task, config=config)
    backbone.train_adapter(task)


def save_prefix_tuning(backbone: PreTrainedModel, task: str, folder: Path) -> None:
    """Write ``adapter_config.json`` and ``adapter.safetensors``, which stock AdapterHub loads but cannot write.

    Its layers all hold the one pool of prefixes as their child, and safetensors refuses tensors of several names.
    """
    layers = [module for module in backbone.modules() if isinstance(module, PrefixTuningLayer)]
    pools = [layer._modules.pop("pool") for layer in layers]
    try:
        for layer, pool in zip(layers, pools, strict=True):
            vars(layer)["pool"] = pool
        save_adapter(backbone, task, folder)
    finally:
        for layer, pool in zip(layers, pools, strict=True):
            vars(layer).pop("pool")
            layer.pool = pool


def load_prefix_tuning(backbone: PreTrainedModel, saved: SavedModules, drop_layers: Collection[int] = ()) -> None:
    """Load what was saved, frozen and active, without its part in ``drop_layers``.

    Raises:
        PipelineError: the files are not what the recipe makes.
    """
    task, left_out = saved.task, saved.recipe.drop_layers
    add_prefix_tuning(backbone, task, saved.recipe.prefix_length, left_out)
    config = backbone.adapters_config.get(task).to_dict()
    check_config(saved.folder / ADAPTER_CONFIG, task, config, saved.remedy)
    # Every layer holds the pool as well; the file has the name under which the backbone does.
    pool = f"prefix_tuning.prefix_tunings.{task}."
    own = {name: tensor for name, tensor in backbone.state_dict(keep_vars=True).items() if name.startswith(pool)}
    fill(own, read_tensors(saved.folder / ADAPTER_FILE, own, saved.remedy))
    backbone.requires_grad_(False)
    # Only now: the file holds the numbers of all layers in one tensor.
    for index in set(drop_layers) - set(left_out):
        for module in layers_of(backbone)[index].modules():
            if isinstance(module, PrefixTuningLayer):
                module.prefixes.pop(task)
