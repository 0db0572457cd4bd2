"""UniPELT: AdapterHub's where nothing is padded, and blind to padding where something is."""

from pathlib import Path
from typing import Any

import adapters
import torch
from torch.nn import functional as F
from transformers import PreTrainedModel

from pipeline.methods.registry import METHODS, add_modules
from pipeline.models.backbone import Backbone
from pipeline.settings.recipe import Recipe
from tests.nano import SIZES
from tests.pipeline.methods.adapted import IDS, hidden, randomise, stock_states


def with_unipelt(backbone: Backbone) -> PreTrainedModel:
    """An encoder whose gates differ from token to token."""
    encoder = backbone.load()
    add_modules(encoder, ["films"], Recipe.parse({"adapter": "unipelt", **SIZES}, "test"))
    randomise(encoder, "films", scale=0.5)
    return encoder


def test_without_padding_it_is_adapterhubs_own(backbone: Backbone, backbone_folder: Path, tmp_path: Path) -> None:
    encoder = with_unipelt(backbone)
    METHODS["unipelt"].save(encoder, "films", tmp_path / "films")
    torch.testing.assert_close(stock_states(backbone_folder, tmp_path / "films"), hidden(encoder), rtol=1e-5, atol=1e-5)


def test_adapterhubs_own_reads_padding_and_ours_does_not(backbone: Backbone) -> None:
    mask = torch.ones_like(IDS)
    mask[1, 5:] = 0

    def apart(encoder: PreTrainedModel) -> float:
        encoder.eval()
        with torch.no_grad():
            padded = encoder(input_ids=IDS, attention_mask=mask).last_hidden_state[1:2, :5]
            short = encoder(input_ids=IDS[1:2, :5], attention_mask=mask[1:2, :5]).last_hidden_state
        return (padded - short).abs().max().item()

    encoder = with_unipelt(backbone)
    assert apart(encoder) < 1e-5
    stock = backbone.load()
    adapters.init(stock)
    stock.add_adapter("films", config=encoder.adapters_config.get("films"))
    stock.set_active_adapters("films")
    stock.load_state_dict(encoder.state_dict())
    assert apart(stock) > 1e-2


def test_a_gate_is_the_mean_over_visible_tokens(backbone: Backbone) -> None:
    encoder = with_unipelt(backbone)
    query: Any = encoder.encoder.layer[0].attention.self.query
    lora, mask = query.loras["films"], torch.ones_like(IDS)
    mask[1, 5:] = 0
    seen: dict[str, Any] = {}
    query.register_forward_hook(lambda _, args, output: seen.update(x=args[0], y=output))
    encoder(input_ids=IDS, attention_mask=mask)
    gates = torch.sigmoid(F.linear(seen["x"], lora.gate.weight, lora.gate.bias))[..., 0]
    for row in range(len(IDS)):
        gate = gates[row][mask[row].bool()].mean()
        x = seen["x"][row]
        expected = F.linear(x, query.weight, query.bias) + gate * x @ lora.lora_A.T @ lora.lora_B.T
        torch.testing.assert_close(seen["y"][row], expected, rtol=1e-4, atol=1e-5)
