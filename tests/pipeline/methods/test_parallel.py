"""Adapters side by side give what each gives alone, and what lies below the first of them is computed once."""

from collections.abc import Sequence

import adapters
import pytest
import torch
from adapters import SeqBnConfig
from adapters.composition import Parallel
from adapters.methods.bottleneck import BottleneckLayer
from torch import Tensor
from transformers import PreTrainedModel

from pipeline.methods.bank import parallel_adapters
from pipeline.models.backbone import Backbone
from tests.pipeline.methods.adapted import PADDED, add_adapter, hidden, randomise

NAMES = ("films", "meals", "pairs")


def alone(encoder: PreTrainedModel, names: Sequence[str]) -> Tensor:
    """The hidden states of each adapter by itself, (N B, T, d)."""
    found = []
    for name in names:
        encoder.set_active_adapters(name)
        found.append(hidden(encoder, PADDED))
    return torch.cat(found)


def stock(encoder: PreTrainedModel, names: Sequence[str]) -> Tensor:
    """AdapterHub's own way."""
    for module in encoder.modules():
        if isinstance(module, BottleneckLayer):
            vars(module).pop("compose_parallel", None)
    encoder.set_active_adapters(Parallel(*names))
    return hidden(encoder, PADDED)


def make(
    backbone: Backbone, sites: str = "houlsby", names: Sequence[str] = NAMES, widths: Sequence[int] = (8, 8, 8)
) -> PreTrainedModel:
    encoder = backbone.load()
    for name, width in zip(names, widths, strict=False):
        add_adapter(encoder, name, sites, width)
    randomise(encoder.requires_grad_(False), ".adapters.", seed=1)
    return encoder


def make_from(backbone: Backbone, *configs: object) -> PreTrainedModel:
    encoder = backbone.load()
    adapters.init(encoder)
    for name, config in zip(NAMES, configs, strict=False):
        encoder.add_adapter(name, config=config)
    randomise(encoder.requires_grad_(False), ".adapters.", seed=1)
    return encoder


@pytest.mark.covering(2)
@pytest.mark.parametrize("sites", ["houlsby", "pfeiffer"])
@pytest.mark.parametrize("names", [NAMES[:1], NAMES[:2], NAMES])
@pytest.mark.parametrize("widths", [(8, 8, 8), (4, 8, 16)], ids=["equal", "mixed"])
def test_each_stream_is_its_adapter_alone(sites: str, names, widths, backbone: Backbone) -> None:
    encoder = make(backbone, sites, names, widths)
    expected = alone(encoder, names)
    parallel_adapters(encoder, names)
    found = hidden(encoder, PADDED)
    assert found.shape == (len(names) * 4, 9, 32)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found, stock(encoder, names), atol=2e-6, rtol=1e-6)


def rows_seen(encoder: PreTrainedModel) -> list[tuple[int, int]]:
    """Rows that go into each layer, and out of it."""
    seen: list[tuple[int, int]] = []
    handles = [
        layer.register_forward_hook(lambda _, inputs, output: seen.append((len(inputs[0]), len(output[0]))))
        for layer in encoder.encoder.layer
    ]
    hidden(encoder, PADDED)
    for handle in handles:
        handle.remove()
    return seen


@pytest.mark.parametrize(
    ("dropped", "seen"), [([], [(4, 12), (12, 12)]), ([0], [(4, 4), (4, 12)]), ([1], [(4, 12), (12, 12)])]
)
def test_layers_without_adapters_are_passed_and_those_below_all_sites_run_once(dropped, seen, backbone) -> None:
    config = SeqBnConfig(reduction_factor=4, leave_out=dropped)
    encoder = make_from(backbone, config, config, config)
    expected = alone(encoder, NAMES)
    parallel_adapters(encoder, NAMES)
    torch.testing.assert_close(hidden(encoder, PADDED), expected, atol=1e-5, rtol=1e-5)
    assert rows_seen(encoder) == seen


@pytest.mark.parametrize(
    "settings", [{"use_gating": True}, {"ln_after": True}, {"ln_before": True}, {"scaling": 2.0}, {"phm_layer": True}]
)
def test_what_a_bank_cannot_stand_for_goes_adapterhubs_own_way(settings: dict, backbone: Backbone) -> None:
    if "phm_layer" in settings:
        settings |= {"phm_dim": 2}
    config = SeqBnConfig(reduction_factor=4, **settings)
    encoder = make_from(backbone, config, SeqBnConfig(reduction_factor=4))
    expected = alone(encoder, NAMES[:2])
    parallel_adapters(encoder, NAMES[:2])
    torch.testing.assert_close(hidden(encoder, PADDED), expected, atol=1e-5, rtol=1e-5)


def test_training_and_other_setups_are_left_to_adapterhub(backbone: Backbone) -> None:
    encoder = make(backbone)
    parallel_adapters(encoder, NAMES)
    pair = NAMES[1:]
    encoder.set_active_adapters(Parallel(*pair))
    found = hidden(encoder, PADDED)
    torch.testing.assert_close(found, alone(encoder, pair), atol=1e-5, rtol=1e-5)
    encoder.set_active_adapters(Parallel(*NAMES))
    encoder.train()
    encoder.encoder.layer[0].output.adapters["films"].requires_grad_(True)
    encoder(**PADDED).last_hidden_state.sum().backward()
    gradients = [p.grad for p in encoder.encoder.layer[0].output.adapters["films"].parameters()]
    assert all(gradient is not None and gradient.abs().sum() > 0 for gradient in gradients)
