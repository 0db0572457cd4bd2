"""Adapters and fusion do what their papers say, and stock AdapterHub reads what we write."""

from collections.abc import Callable
from typing import Any

import adapters
import pytest
import torch
from adapters.composition import Fuse
from torch import Tensor
from torch.nn import functional as F

from pipeline.methods.houlsby import load_adapter, reduction_factor
from pipeline.methods.registry import METHODS
from pipeline.methods.saved import SavedModules
from pipeline.methods.standard import value_names, value_regularisation
from pipeline.models.backbone import Backbone
from pipeline.settings.recipe import Recipe
from tests.nano import SIZES
from tests.pipeline.methods.adapted import (
    add_adapter,
    add_standard_fusion,
    hidden,
    randomise,
    save_fused,
    trainable,
)


def test_an_adapter_computes_houlsbys_equation(backbone: Backbone) -> None:
    """x = (1, 2), W_down = (1, 1), W_up = (1, -1), b_up = (.5, 0): x + W_up gelu(3) + b_up = (4.49595, -0.99595)."""
    encoder = backbone.load()
    add_adapter(encoder, "films", "houlsby", 1)
    module = encoder.encoder.layer[0].output.adapters["films"]
    down, up = module.adapter_down[0], module.adapter_up
    with torch.no_grad():
        for tensor in (down.weight, down.bias, up.weight, up.bias):
            tensor.zero_()
        down.weight[0, :2], up.weight[0, 0], up.weight[1, 0], up.bias[0] = 1.0, 1.0, -1.0, 0.5
        x = torch.zeros(1, 1, backbone.hidden_size)
        x[..., 0], x[..., 1] = 1.0, 2.0
        after, *_ = module(x, residual_input=x)
    assert after[0, 0, :2].tolist() == pytest.approx([4.49595, -0.99595], abs=1e-5)


def test_every_bottleneck_gets_its_exact_width() -> None:
    for width in (32, 384, 768, 1024):
        for bottleneck in range(1, width + 1):
            assert int(width // reduction_factor(width, bottleneck)) == bottleneck
    assert reduction_factor(768, 48) == 16  # the quotient itself, as others write it, wherever it will do


def test_fusion_of_copies_of_one_adapter_is_that_adapter(
    backbone: Backbone, saved: Callable[..., SavedModules]
) -> None:
    """V starts 1e-6 off the identity, so the two agree to about that."""
    folder = saved("films", 0)
    single = backbone.load()
    load_adapter(single, "films", folder)
    fused = backbone.load()
    add_standard_fusion(fused, {"films": folder, "meals": folder, "pairs": folder})
    randomise(fused, "adapter_fusion_layer", ".query.")
    randomise(fused, "adapter_fusion_layer", ".key.")
    torch.testing.assert_close(hidden(fused), hidden(single), atol=1e-3, rtol=0)


def test_a_zero_query_gives_the_mean_of_the_adapters(backbone: Backbone, saved: Callable[..., SavedModules]) -> None:
    fused = backbone.load()
    add_standard_fusion(fused, {"films": saved("films", 0), "meals": saved("meals", 1)})
    layer = fused.encoder.layer[0].output.adapter_fusion_layer["films,meals"]
    with torch.no_grad():
        layer.query.weight.zero_()
        layer.query.bias.zero_()
        z = torch.randn(2, 5, 2, backbone.hidden_size)
        h = torch.randn(2, 5, backbone.hidden_size)
        out = layer.eval()(h, z, z, torch.zeros_like(h))
    torch.testing.assert_close(out, layer.value(z.mean(dim=2)), atol=1e-5, rtol=1e-5)


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


@pytest.mark.parametrize(("sites", "per_layer"), [("houlsby", 2), ("pfeiffer", 1)])
def test_only_fusion_is_trainable_in_stage_two(sites, per_layer, backbone, saved) -> None:
    fused, width = backbone.load(), backbone.hidden_size
    add_standard_fusion(fused, {"films": saved("films", 0, sites), "meals": saved("meals", 1, sites)})
    assert trainable(fused) == 2 * per_layer * (3 * width**2 + 2 * width)
    assert all("adapter_fusion_layer" in name for name, p in fused.named_parameters() if p.requires_grad)
    assert len(value_names(fused)) == 2 * per_layer
    backbone.check_unchanged(fused)


def test_the_regulariser_is_the_distance_of_v_from_the_identity(backbone, saved) -> None:
    fused = backbone.load()
    add_standard_fusion(fused, {"films": saved("films", 0), "meals": saved("meals", 1)})
    randomise(fused, "adapter_fusion_layer", ".value.")
    state = dict(fused.named_parameters())
    distance = sum((state[n] - torch.eye(backbone.hidden_size)).square().sum().item() for n in value_names(fused))
    for weight in (0.01, 0.5):
        assert value_regularisation(fused, weight)().item() == pytest.approx(weight * distance, rel=1e-5)


def test_stock_adapterhub_gives_the_same_hidden_states(backbone, backbone_folder, saved, tmp_path) -> None:
    """Only AdapterHub's own calls on its own model, from the folders alone."""
    from transformers import BertModel

    sources = {"films": saved("films", 0), "meals": saved("meals", 1)}
    fused = backbone.load()
    add_standard_fusion(fused, sources)
    randomise(fused, "adapter_fusion_layer")
    save_fused(fused, sources, tmp_path / "fusion")

    stock = BertModel.from_pretrained(backbone_folder, add_pooling_layer=False)
    adapters.init(stock)
    names = [stock.load_adapter(str(folder.folder), use_safetensors=True) for folder in sources.values()]
    stock.load_adapter_fusion(str(tmp_path / "fusion"), use_safetensors=True)
    stock.set_active_adapters(Fuse(*names))
    assert names == ["films", "meals"]
    torch.testing.assert_close(hidden(stock), hidden(fused), atol=1e-5, rtol=1e-5)


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
