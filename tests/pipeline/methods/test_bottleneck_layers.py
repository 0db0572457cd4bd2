"""A whole layer with a bottleneck computes the equations of docs/methods.md: what is read, scaled and added where."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from pipeline.methods.registry import METHODS
from pipeline.models.backbone import Backbone
from pipeline.settings.recipe import Recipe
from tests.nano import SIZES
from tests.pipeline.methods.adapted import hidden, randomise

KINDS = ("houlsby", "pfeiffer", "unipelt")


def bottleneck(module: Any, states: Tensor) -> Tensor:
    """``W_up f(W_down x + b_down) + b_up``, of UniPELT times its gate, of ``states`` (B, T, d)."""
    down, up = module.adapter_down[0], module.adapter_up
    activation = F.relu if module.use_gating else F.gelu
    added = F.linear(activation(F.linear(states, down.weight, down.bias)), up.weight, up.bias)
    if not module.use_gating:
        return added
    gate = F.linear(states, module.gate.weight, module.gate.bias).sigmoid().mean(dim=1, keepdim=True)
    return gate * added


@torch.no_grad()
def by_equation(kind: str, layer: Any, states: Tensor, attended: Tensor) -> Tensor:
    """The layer's output y of its input x and ``attended`` = MHA(x)."""
    first, second = layer.attention.output, layer.output
    if kind == "houlsby":
        attended = attended + bottleneck(first.adapters["films"], attended)
    a = first.LayerNorm(states + attended)
    h = second.dense(F.gelu(layer.intermediate.dense(a)))
    read = h if kind == "houlsby" else second.LayerNorm(a + h)
    y: Tensor = second.LayerNorm(a + h + bottleneck(second.adapters["films"], read))
    return y


@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_computes_its_equation(kind: Any, backbone: Backbone) -> None:
    encoder: Any = backbone.load()
    METHODS[kind].add(encoder, ["films"], Recipe(adapter=kind, **SIZES))
    randomise(encoder, "films")
    for layer in encoder.encoder.layer:
        seen: dict[str, Tensor] = {}
        layer.register_forward_pre_hook(lambda _, given, seen=seen: seen.update(x=given[0]))
        layer.attention.output.dense.register_forward_hook(lambda _, __, output, seen=seen: seen.update(mha=output))
        layer.register_forward_hook(lambda _, __, output, seen=seen: seen.update(y=output[0]))
        hidden(encoder)
        torch.testing.assert_close(seen["y"], by_equation(kind, layer, seen["x"], seen["mha"]), rtol=1e-5, atol=1e-5)
