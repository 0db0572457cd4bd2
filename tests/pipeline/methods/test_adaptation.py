"""Adapters and fusion do what their papers say, and stock AdapterHub reads what we write."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from pipeline.methods.houlsby import reduction_factor
from pipeline.methods.registry import METHODS
from pipeline.methods.saved import SavedModules
from pipeline.models.backbone import Backbone
from pipeline.settings.recipe import Recipe
from tests.nano import SIZES
from tests.pipeline.methods.adapted import add_standard_fusion, hidden, randomise


def test_every_bottleneck_gets_its_exact_width() -> None:
    for width in (32, 384, 768, 1024):
        for bottleneck in range(1, width + 1):
            assert int(width // reduction_factor(width, bottleneck)) == bottleneck
    assert reduction_factor(768, 48) == 16  # the quotient itself, as others write it, wherever it will do


def test_fusion_attends_as_the_oracle_says(backbone: Backbone, saved: Callable[..., SavedModules]) -> None:
    """One dimension, h = Q = K = V = 1, z = (1, 2, 4): s = (.0420, .1142, .8438) and o = 3.6456."""
    fused = backbone.load()
    add_standard_fusion(fused, {name: saved(name, seed) for seed, name in enumerate(("films", "meals", "pairs"))})
    layer = fused.encoder.layer[0].output.adapter_fusion_layer["films,meals,pairs"].eval()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.zero_()
        for linear in (layer.query, layer.key, layer.value):
            linear.weight[0, 0] = 1.0
        h = torch.zeros(1, 1, backbone.hidden_size)
        h[..., 0] = 1.0
        z = torch.zeros(1, 1, 3, backbone.hidden_size)
        z[0, 0, :, 0] = torch.tensor([1.0, 2.0, 4.0])
        out, attention = layer(h, z, z, torch.zeros_like(h), output_attentions=True)
    assert attention[0, 0].tolist() == pytest.approx([0.0420, 0.1142, 0.8438], abs=1e-4)
    assert out[0, 0, 0].item() == pytest.approx(3.6456, abs=1e-4)


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
