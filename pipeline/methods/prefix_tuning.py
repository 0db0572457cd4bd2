"""Prefix tuning as AdapterHub does it (Li & Liang 2021): L_p trained keys and values in every attention layer.

2 L_p d numbers per layer, twice as many as in a prefix of hidden states (:mod:`prefix`), which the backbone projects to
keys and values. This is the flat form: keys and values are trained directly, not produced by an MLP during training as
in Li & Liang, so the trained tensors are the saved ones.
"""

import re
from collections.abc import Collection
from pathlib import Path

from adapters import PrefixTuningConfig
from adapters.methods.adapter_layer_base import AdapterLayerBase
from adapters.methods.prefix_tuning import PrefixTuningLayer
from transformers import PreTrainedModel

from pipeline.methods.saved import ADAPTER_CONFIG, ADAPTER_FILE, SavedModules, StockAdapter, check_config
from pipeline.models.layout import layers_of
from pipeline.models.tensors import fill, read_tensors

_BESIDE = "prefix_gates|adapters|loras"
"""AdapterHub's containers of the modules that may accompany prefixes."""


class PrefixTuning(StockAdapter):
    """Prefix tuning, alone or combined with other AdapterHub modules (ConfigUnion).

    AdapterHub keeps the prefixes of all layers in one pool, which every layer refers to.
    """

    def save(self, backbone: PreTrainedModel, task: str, folder: Path) -> None:
        """Write the files that stock AdapterHub loads but cannot write.

        The pool is a child of every layer, and safetensors refuses tensors with several names.
        """
        layers = [module for module in backbone.modules() if isinstance(module, PrefixTuningLayer)]
        pools = [layer._modules.pop("pool") for layer in layers]
        try:
            for layer, pool in zip(layers, pools, strict=True):
                vars(layer)["pool"] = pool
            super().save(backbone, task, folder)
        finally:
            for layer, pool in zip(layers, pools, strict=True):
                vars(layer).pop("pool")
                layer.pool = pool

    def load(self, backbone: PreTrainedModel, saved: SavedModules, drop_layers: Collection[int]) -> None:
        recipe, task = saved.recipe, saved.task
        self.put_in(backbone, task, recipe, recipe.adapter.drop_layers)
        check_config(saved.folder / ADAPTER_CONFIG, task, backbone.adapters_config.get(task).to_dict(), saved.remedy)
        # The file names the pool as a child of the backbone.
        mark = re.compile(rf"^prefix_tuning\.prefix_tunings\.{re.escape(task)}\.|\.({_BESIDE})\.{re.escape(task)}\.")
        tensors = {name: tensor for name, tensor in backbone.state_dict(keep_vars=True).items() if mark.search(name)}
        fill(tensors, read_tensors(saved.folder / ADAPTER_FILE, tensors, saved.remedy))
        # Drop layers only after loading: the file holds the numbers of all layers in one tensor.
        for index in set(drop_layers) - set(recipe.adapter.drop_layers):
            for module in layers_of(backbone)[index].modules():
                if isinstance(module, AdapterLayerBase) and task in module.adapter_modules:
                    module.adapter_modules.pop(task)


PREFIX_TUNING = PrefixTuning(lambda recipe, backbone: PrefixTuningConfig(flat=True, prefix_length=recipe.prefix.length))
