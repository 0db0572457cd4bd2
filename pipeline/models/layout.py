"""The layers of BERT, RoBERTa and DistilBERT: where their parts are, which are frozen, and how to run some of them.

The *frozen prefix* of a model is the embeddings and layers below the lowest layer that trains. It gives an input the
same hidden states every time, so they can be cached (:mod:`prefix_cache`). It runs in evaluation mode and without
gradients: dropout below the lowest trained layer would only blur that layer's input.
"""

import copy
from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from pipeline.system.errors import PipelineError


def stack_of(backbone: nn.Module) -> Any:
    """The module that runs the layers, which it holds as ``layer``; DistilBERT has another name for it."""
    return backbone.transformer if hasattr(backbone, "transformer") else backbone.encoder


def layers_of(backbone: nn.Module) -> Sequence[Any]:
    """The layers from the bottom up."""
    return stack_of(backbone).layer


def kept_indices(backbone: nn.Module, drop_layers: Collection[int]) -> list[int]:
    """The numbers of the layers without ``drop_layers``, from the bottom up."""
    return [index for index in range(len(layers_of(backbone))) if index not in drop_layers]


def kept_layers(backbone: nn.Module, drop_layers: Collection[int]) -> list[Any]:
    return [layers_of(backbone)[index] for index in kept_indices(backbone, drop_layers)]


def norms_of(layer: Any) -> tuple[nn.LayerNorm, nn.LayerNorm]:
    """LN1, after attention, and LN2, after the FFN."""
    if hasattr(layer, "sa_layer_norm"):
        return layer.sa_layer_norm, layer.output_layer_norm
    return layer.attention.output.LayerNorm, layer.output.LayerNorm


def attention_of(layer: Any) -> tuple[Any, Any, Any, str]:
    """The self-attention of a layer, its key and value projections, and the name of its mask argument."""
    if hasattr(layer.attention, "k_lin"):
        return layer.attention, layer.attention.k_lin, layer.attention.v_lin, "mask"
    module = layer.attention.self
    return module, module.key, module.value, "attention_mask"


def mask_by_query(mask: Tensor | None) -> Tensor | None:
    """The mask a layer is given, in a shape that broadcasts over (B, heads, T, T): additive, or true where visible.

    None is a batch without padding. Attention that is not fused may be given (B, T) of zeros and ones.
    """
    if mask is None or mask.is_floating_point():
        return mask
    mask = mask.to(torch.bool)
    return mask[:, None, None, :] if mask.ndim == 2 else mask


def frozen_depth(backbone: Any) -> int:
    """How many layers from the bottom hold nothing that trains; 0 if the embeddings train."""
    layers = layers_of(backbone)
    trains = [any(p.requires_grad for p in part.parameters()) for part in (backbone.embeddings, *layers)]
    return 0 if trains[0] else [*trains[1:], True].index(True)


def is_frozen(backbone: nn.Module) -> bool:
    """Whether nothing in ``backbone`` trains."""
    return frozen_depth(backbone) == len(layers_of(backbone))


def frozen_parts(backbone: Any) -> list[nn.Module]:
    """The modules of the frozen prefix; the backbone itself if nothing in it trains."""
    if is_frozen(backbone):
        return [backbone]
    depth = frozen_depth(backbone)
    return [backbone.embeddings, *layers_of(backbone)[:depth]] if depth else []


def lower_states(backbone: Any, depth: int, inputs: dict[str, Tensor]) -> Tensor:
    """Hidden states (B, T, d) after the embeddings and the lower ``depth`` layers."""
    return _run_part(backbone, slice(0, depth), backbone.embeddings, inputs)


def upper_states(backbone: nn.Module, depth: int, states: Tensor, inputs: dict[str, Tensor]) -> Tensor:
    """Last hidden states from those of :func:`lower_states`."""
    return _run_part(backbone, slice(depth, None), _Given(states), inputs)


def _run_part(backbone: Any, part: slice, embeddings: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
    """Run some layers of ``backbone`` over other embeddings, by transformers' own code."""
    stack, own = stack_of(backbone), backbone.embeddings
    layers = stack.layer
    stack.layer, backbone.embeddings = layers[part], embeddings
    try:
        return backbone(**inputs).last_hidden_state
    finally:
        stack.layer, backbone.embeddings = layers, own


class _Given(nn.Module):
    """Stands in for the embeddings and returns ``states`` for any input."""

    def __init__(self, states: Tensor) -> None:
        super().__init__()
        self.states = states

    def forward(self, *_: Any, **__: Any) -> Tensor:
        return self.states


def split_encoder(encoder: PreTrainedModel, top: int, branches: int) -> list[PreTrainedModel]:
    """``branches`` encoders that share all but the ``top`` layers, of which each has its own copy (Hayes 2024).

    With ``top`` 0 they share everything; with all layers, the embeddings. The first is ``encoder`` itself. Call this
    before an encoder is made lean.
    """
    depth = len(layers_of(encoder))
    if not 0 <= top <= depth:
        raise PipelineError(f"split_layers {top}: the backbone has {depth} layers; give 0 to {depth}")
    stack = stack_of(encoder)
    name = next(name for name, module in encoder.named_children() if module is stack)
    encoders = [encoder]
    for _ in range(branches - 1):
        own_stack, other = _shallow(stack), _shallow(encoder)
        own_stack.layer = nn.ModuleList([*stack.layer[: depth - top], *copy.deepcopy(stack.layer[depth - top :])])
        setattr(other, name, own_stack)
        encoders.append(other)
    return encoders


def _shallow(module: Any) -> Any:
    """A module with the same children, which may be replaced without changing the first module."""
    other = copy.copy(module)
    other._modules = dict(module._modules)
    return other
