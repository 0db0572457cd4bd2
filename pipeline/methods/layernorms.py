"""The LayerNorms that train with a task's adapter (Houlsby et al. 2019), kept in a file beside it."""

from collections.abc import Collection
from pathlib import Path

from torch import nn

from pipeline.methods.saved import SavedModules
from pipeline.models.tensors import fill, layer_of, read_tensors


def train_layernorms(backbone: nn.Module, drop_layers: Collection[int] = ()) -> None:
    """Unfreeze the LayerNorms everywhere but in ``drop_layers``."""
    for parameter in _parameters(backbone, drop_layers).values():
        parameter.requires_grad_(True)


def load_layernorms(
    backbone: nn.Module, file: Path, saved: SavedModules, drop_layers: Collection[int] = ()
) -> Collection[str]:
    """Load trained LayerNorms; those in ``drop_layers`` stay as they were pretrained.

    Returns:
        The names of the parameters that are no longer as they were pretrained.

    Raises:
        PipelineError: the file is not what the recipe makes.
    """
    tensors = read_tensors(file, _parameters(backbone, saved.recipe.adapter.drop_layers), saved.remedy)
    kept = _parameters(backbone, {*saved.recipe.adapter.drop_layers, *drop_layers})
    fill(kept, tensors)
    return kept.keys()


def _parameters(backbone: nn.Module, drop_layers: Collection[int]) -> dict[str, nn.Parameter]:
    """The LayerNorms' parameters. The embeddings go with layer 0: below the lowest adapter nothing trains."""
    return {
        f"{name}.{key}": parameter
        for name, module in backbone.named_modules()
        if isinstance(module, nn.LayerNorm) and (layer_of(f"{name}.") or 0) not in drop_layers
        for key, parameter in module.named_parameters()
    }
