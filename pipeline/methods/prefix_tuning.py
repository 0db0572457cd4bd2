"""Prefix tuning as AdapterHub does it (Li & Liang 2021): L_p trained keys and values in every attention layer.

2 L_p d numbers per layer, twice those of a prefix of hidden states (:mod:`prefix`), whose keys and values come from the
backbone's projections. In this flat form the numbers themselves are trained, without the MLP that Li & Liang draw them
from while training, so that what is trained is what is kept.
"""

from collections.abc import Collection
from pathlib import Path

from adapters import PrefixTuningConfig
from adapters.methods.prefix_tuning import PrefixTuningLayer
from transformers import PretrainedConfig, PreTrainedModel

from pipeline.methods.saved import ADAPTER_FILE, SavedModules, StockAdapter, check_saved_config
from pipeline.models.layout import layers_of
from pipeline.models.tensors import fill, read_tensors
from pipeline.settings.recipe import Recipe
from pipeline.system.errors import PipelineError


def _config(recipe: Recipe, backbone: PretrainedConfig) -> PrefixTuningConfig:
    # On a DistilBERT AdapterHub adds one to the prefix's scores in batches with padding.
    if backbone.model_type == "distilbert":
        raise PipelineError(
            "prefix-tuning on a DistilBERT: AdapterHub's depends on how much padding a batch has there: use --adapter"
            " prefix"
        )
    return PrefixTuningConfig(flat=True, prefix_length=recipe.prefix.length)


class PrefixTuning(StockAdapter):
    """AdapterHub's prefixes of all layers are one pool, of which every layer holds a reference."""

    def save(self, backbone: PreTrainedModel, task: str, folder: Path) -> None:
        """Write the files that stock AdapterHub loads but cannot write.

        The pool is a child of all its layers, and safetensors refuses tensors of several names.
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
        check_saved_config(backbone, task, saved)
        # In the file the pool has the name that it has as a child of the backbone.
        pool = f"prefix_tuning.prefix_tunings.{task}."
        own = {name: tensor for name, tensor in backbone.state_dict(keep_vars=True).items() if name.startswith(pool)}
        fill(own, read_tensors(saved.folder / ADAPTER_FILE, own, saved.remedy))
        # Only now: the file holds the numbers of all layers in one tensor.
        for index in set(drop_layers) - set(recipe.adapter.drop_layers):
            for module in layers_of(backbone)[index].modules():
                if isinstance(module, PrefixTuningLayer):
                    module.prefixes.pop(task)


PREFIX_TUNING = PrefixTuning(_config)
