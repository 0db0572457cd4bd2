"""Adapters side by side, and the units of many at once, are what each gives alone in AdapterHub's own forward pass."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import adapters
import pytest
import torch
from adapters import SeqBnConfig
from adapters.composition import Parallel
from adapters.methods.bottleneck import BottleneckLayer
from torch import Tensor
from transformers import PreTrainedModel

from pipeline.methods.bank import UnitReader, parallel_adapters
from pipeline.methods.saved import SavedModules, sites_of
from pipeline.models.backbone import Backbone, open_backbone
from tests.nano import save_backbone
from tests.pipeline.methods.adapted import PADDED, WHOLE, add_adapter, hidden, randomise, save_adapter, saved_modules

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


Save = Callable[..., SavedModules]


@pytest.fixture
def save(tmp_path: Path) -> Save:
    def make(
        backbone: Backbone, name: str, seed: int, width: int = 8, drop: tuple[int, ...] = (), kind: str = "houlsby"
    ) -> SavedModules:
        encoder = backbone.load()
        add_adapter(encoder, name, kind, width, drop)
        randomise(encoder, f"adapters.{name}", seed=seed)
        save_adapter(encoder, name, tmp_path / name)
        return saved_modules(name, tmp_path / name, adapter=kind, bottleneck=width, drop_layers=drop)

    return make


def stock_units(backbone: Backbone, saved: SavedModules) -> list[torch.Tensor]:
    """What AdapterHub's own forward pass computes at each site with the adapter, (B, T, m), from the bottom up."""
    encoder = backbone.load()
    adapters.init(encoder)
    encoder.load_adapter(str(saved.folder), load_as=saved.task, set_active=True, use_safetensors=True)
    units: list[torch.Tensor] = []
    for site in sites_of(encoder):
        if saved.task in site.adapters:
            down: Any = site.adapters[saved.task]
            down.adapter_down.register_forward_hook(lambda _, __, output: units.append(output))
    with torch.no_grad():
        encoder.eval()(**WHOLE)
    return units


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert"])
def test_at_the_lowest_site_of_an_adapter_they_are_those_of_its_own_model(
    family: str, save: Save, tmp_path: Path
) -> None:
    """Above it the adapter changes what it reads; layer 0 is in the lower half of two."""
    backbone = open_backbone(str(save_backbone(tmp_path / "backbone", family)))
    saved = [save(backbone, "films", 1, 8, (0,)), save(backbone, "meals", 2, 5, (0,)), save(backbone, "pairs", 3, 8)]
    reader = UnitReader(backbone.load(), saved)
    for pooling in ("cls", "mean"):
        vectors, units = reader.read(WHOLE, pooling)
        states = hidden(backbone.load())
        torch.testing.assert_close(vectors, states[:, 0] if pooling == "cls" else states.mean(dim=1))
        assert [part.shape for part in units] == [(3, 16), (3, 10), (3, 16)]
        for each, part in zip(saved[:2], units, strict=False):
            lowest, above = stock_units(backbone, each)
            expected = lowest[:, 0] if pooling == "cls" else lowest.mean(dim=1)
            torch.testing.assert_close(part[:, : expected.shape[1]], expected)
            assert not torch.allclose(part[:, expected.shape[1] :], above[:, 0] if pooling == "cls" else above.mean(1))


@pytest.mark.parametrize("drop", [(0,), ()])
def test_those_of_pfeiffers_adapters_are_read_where_these_read(
    drop: tuple[int, ...], save: Save, backbone: Backbone
) -> None:
    """They read what the layer would return without them. Above the lowest one, it is not what they would read."""
    saved = save(backbone, "films", 1, 8, drop, "pfeiffer")
    _, (units,) = UnitReader(backbone.load(), [saved]).read(WHOLE, "mean")
    top = stock_units(backbone, saved)[-1].mean(dim=1)
    assert units.shape == top.shape
    assert torch.allclose(units, top, rtol=1e-4, atol=1e-5) == bool(drop)


def test_they_do_not_depend_on_the_others_nor_on_padding_and_the_backbone_is_left_alone(
    save: Save, backbone: Backbone
) -> None:
    saved = [save(backbone, "films", 1), save(backbone, "meals", 2, 5)]
    encoder = backbone.load()
    together = UnitReader(encoder, saved)
    assert torch.equal(hidden(encoder), hidden(backbone.load()))
    padded = {name: torch.cat([tensor, torch.zeros_like(tensor)], 1) for name, tensor in WHOLE.items()}
    for number, each in enumerate(saved):
        _, (alone,) = UnitReader(backbone.load(), [each]).read(WHOLE, "mean")
        torch.testing.assert_close(together.read(padded, "mean")[1][number], alone, rtol=1e-4, atol=1e-5)


def test_they_are_read_on_the_device_of_the_backbone(save: Save, backbone: Backbone) -> None:
    """The device meta refuses tensors of the CPU, as a GPU does."""
    encoder = backbone.load().to("meta")
    vars(encoder)["attn_implementation"] = "eager"  # sdpa asks whether the mask hides anything
    reader = UnitReader(encoder, [save(backbone, "films", 1), save(backbone, "meals", 2, 5)])
    inputs = {name: tensor.to("meta") for name, tensor in WHOLE.items()}
    for pooling in ("cls", "mean"):
        vectors, units = reader.read(inputs, pooling)
        assert {each.device.type for each in (vectors, *units)} == {"meta"}
        assert [each.shape for each in units] == [(3, 16), (3, 10)]


@pytest.mark.parametrize("family", ["modernbert", "deberta-v2", "electra"])
def test_they_are_read_off_the_backbone_as_it_was(family: str, save: Save, tmp_path: Path) -> None:
    """AdapterHub alone would give a ModernBERT random biases."""
    backbone = open_backbone(str(save_backbone(tmp_path / "backbone", family)))
    reader = UnitReader(backbone.load(), [save(backbone, "films", 1)])
    vectors, (units,) = reader.read(WHOLE, "mean")
    torch.testing.assert_close(vectors, hidden(backbone.load()).mean(dim=1))
    assert units.shape[1] and units.isfinite().all()
