"""The LayerNorms that train with a task's adapter (Houlsby et al. 2019; Liu & Shen 2023).

A single task trains the LayerNorms themselves, which are kept in a file beside its adapter. If several tasks share a
backbone, every task trains copies of both LayerNorms of each layer, initialised to the pretrained ones: 4d parameters
per layer. The LayerNorm of the embeddings stays shared.
"""

from collections.abc import Collection
from pathlib import Path

from torch import Tensor, nn

from pipeline.methods.saved import SavedModules
from pipeline.models.layout import TaskSite, base_of, kept_layers, norms_of, put_into_site
from pipeline.models.tensors import fill, layer_of, read_tensors


def train_layernorms(backbone: nn.Module, drop_layers: Collection[int] = ()) -> None:
    """Unfreeze all LayerNorms except in ``drop_layers``."""
    for parameter in _parameters(backbone, drop_layers).values():
        parameter.requires_grad_(True)


def load_layernorms(
    backbone: nn.Module, file: Path, saved: SavedModules, drop_layers: Collection[int] = ()
) -> Collection[str]:
    """Load trained LayerNorms, except in ``drop_layers``; returns the names of the parameters that were loaded.

    Raises a :class:`PipelineError` if the file does not fit the recipe.
    """
    tensors = read_tensors(file, _parameters(backbone, saved.recipe.adapter.drop_layers), saved.remedy)
    kept = _parameters(backbone, {*saved.recipe.adapter.drop_layers, *drop_layers})
    fill(kept, tensors)
    return kept.keys()


def _parameters(backbone: nn.Module, drop_layers: Collection[int]) -> dict[str, nn.Parameter]:
    """The LayerNorms' parameters. The embeddings go with layer 0: below the lowest adapter nothing trains.

    LayerNorms above the layers, such as ModernBERT's last one, are never left out.
    """
    below = {id(module) for part in base_of(backbone) for module in part.modules()}
    return {
        f"{name}.{key}": parameter
        for name, module in backbone.named_modules()
        if isinstance(module, nn.LayerNorm) and (0 if id(module) in below else layer_of(f"{name}.")) not in drop_layers
        for key, parameter in module.named_parameters()
    }


class NormSite(TaskSite):
    """Replaces a LayerNorm's ``forward`` with that of the active task's copy."""

    def __init__(self, norm: nn.LayerNorm) -> None:
        super().__init__()
        self._own = (norm,)  # in a tuple, so that torch does not register it here too
        norm.forward = self.normalise  # type: ignore[assignment, method-assign]

    def normalise(self, states: Tensor) -> Tensor:
        (norm,) = self._own
        return nn.LayerNorm.forward(norm, states) if self.current is None else self.current(states)


def add_layernorms(backbone: nn.Module, task: str, drop_layers: Collection[int] = ()) -> None:
    """Give ``task`` copies of the LayerNorms in every layer of ``backbone`` but ``drop_layers``."""
    for layer in kept_layers(backbone, drop_layers):
        for norm in norms_of(layer):
            copied = nn.LayerNorm(list(norm.normalized_shape), norm.eps, bias=norm.bias is not None)
            copied.load_state_dict(dict(norm.named_parameters(recurse=False)))
            put_into_site(NormSite, norm, "own", task, copied.to(norm.weight.device))


def copied_parameters(backbone: nn.Module) -> list[str]:
    """Names of the parameters of all tasks' LayerNorm copies in ``backbone``, initialised to pretrained values."""
    return [name for name, _ in backbone.named_parameters() if ".own.tasks." in name]


def replaced_norms(backbone: nn.Module) -> list[nn.LayerNorm]:
    """The LayerNorms that no task uses any more, because every task has a copy."""
    return [norm for norm in backbone.modules() if isinstance(norm, nn.LayerNorm) and hasattr(norm, "own")]
