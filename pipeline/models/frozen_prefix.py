"""The frozen prefix of a model: the embeddings and layers below the lowest layer that trains.

The prefix gives an input the same hidden states every time, so they can be cached (:mod:`prefix_cache`). It runs in
evaluation mode and without gradients: dropout below the lowest trained layer would only blur that layer's input.
"""

from torch import nn

from pipeline.models.layout import layers_of


def frozen_depth(backbone: nn.Module) -> int:
    """How many layers from the bottom hold nothing that trains; 0 if the embeddings train."""
    if _trains(backbone.embeddings):  # type: ignore[arg-type]
        return 0
    layers = layers_of(backbone)
    return next((depth for depth, layer in enumerate(layers) if _trains(layer)), len(layers))


def is_frozen(backbone: nn.Module) -> bool:
    """Whether nothing in ``backbone`` trains."""
    return frozen_depth(backbone) == len(layers_of(backbone))


def frozen_parts(backbone: nn.Module) -> list[nn.Module]:
    """The modules of the frozen prefix; the backbone itself if nothing in it trains."""
    if is_frozen(backbone):
        return [backbone]
    depth = frozen_depth(backbone)
    return [backbone.embeddings, *layers_of(backbone)[:depth]] if depth else []  # type: ignore[list-item]


def _trains(module: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in module.parameters())
