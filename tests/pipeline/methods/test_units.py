"""The units of many adapters at once are those that each has in AdapterHub's own forward pass, where they can be."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import adapters
import pytest
import torch

from pipeline.methods.bank import UnitReader
from pipeline.methods.saved import SavedModules, sites_of
from pipeline.models.backbone import Backbone, open_backbone
from tests.nano import save_backbone
from tests.pipeline.methods.adapted import IDS, add_adapter, hidden, randomise, save_adapter, saved_modules

MASK = torch.ones_like(IDS)
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
        encoder.eval()(input_ids=IDS, attention_mask=MASK)
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
        vectors, units = reader.read({"input_ids": IDS, "attention_mask": MASK}, pooling)
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
    _, (units,) = UnitReader(backbone.load(), [saved]).read({"input_ids": IDS, "attention_mask": MASK}, "mean")
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
    padded = {"input_ids": torch.cat([IDS, torch.zeros_like(IDS)], 1), "attention_mask": torch.cat([MASK, 0 * MASK], 1)}
    for number, each in enumerate(saved):
        _, (alone,) = UnitReader(backbone.load(), [each]).read({"input_ids": IDS, "attention_mask": MASK}, "mean")
        torch.testing.assert_close(together.read(padded, "mean")[1][number], alone, rtol=1e-4, atol=1e-5)


def test_they_are_read_on_the_device_of_the_backbone(save: Save, backbone: Backbone) -> None:
    """The device meta refuses tensors of the CPU, as a GPU does."""
    encoder = backbone.load().to("meta")
    vars(encoder)["attn_implementation"] = "eager"  # sdpa asks whether the mask hides anything
    reader = UnitReader(encoder, [save(backbone, "films", 1), save(backbone, "meals", 2, 5)])
    inputs = {"input_ids": IDS.to("meta"), "attention_mask": MASK.to("meta")}
    for pooling in ("cls", "mean"):
        vectors, units = reader.read(inputs, pooling)
        assert {each.device.type for each in (vectors, *units)} == {"meta"}
        assert [each.shape for each in units] == [(3, 16), (3, 10)]


@pytest.mark.parametrize("family", ["modernbert", "deberta-v2", "electra"])
def test_they_are_read_off_the_backbone_as_it_was(family: str, save: Save, tmp_path: Path) -> None:
    """AdapterHub alone would give a ModernBERT random biases."""
    backbone = open_backbone(str(save_backbone(tmp_path / "backbone", family)))
    reader = UnitReader(backbone.load(), [save(backbone, "films", 1)])
    vectors, (units,) = reader.read({"input_ids": IDS, "attention_mask": MASK}, "mean")
    torch.testing.assert_close(vectors, hidden(backbone.load()).mean(dim=1))
    assert units.shape[1] and units.isfinite().all()
