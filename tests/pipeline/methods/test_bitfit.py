"""BitFit trains as if the biases themselves were trained, and changes nothing else."""

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim import AdamW

from pipeline.methods.registry import add_modules
from pipeline.models.backbone import open_backbone
from pipeline.settings.recipe import Recipe
from tests.nano import FAMILIES, save_backbone
from tests.pipeline.methods.adapted import IDS, hidden

RECIPE = Recipe(adapter="bitfit")


def biases(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: parameter for name, parameter in model.named_parameters() if name.endswith(".bias")}


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "modernbert"])
def test_it_is_training_the_biases_in_place(family: str, tmp_path: Path) -> None:
    """The same gradients, and the same model after each step of AdamW, with another bias for every bias there is."""
    backbone = open_backbone(str(save_backbone(tmp_path, family)))
    ours, theirs = backbone.load(), backbone.load()
    add_modules(ours, ["films"], RECIPE)
    assert torch.equal(hidden(ours), hidden(theirs))
    theirs.requires_grad_(False)
    for bias in biases(theirs).values():
        bias.requires_grad_(True)
    for model in (ours, theirs):
        optimizer = AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01, weight_decay=0)
        for _ in range(3):
            optimizer.zero_grad()
            model(input_ids=IDS, attention_mask=torch.ones_like(IDS)).last_hidden_state.square().sum().backward()
            optimizer.step()
    own = dict(ours.named_parameters())
    for name, bias in biases(theirs).items():
        offset = own[f"{name.removesuffix('bias')}bitfit.tasks.films.offset"]
        # A key's bias adds the same number to all scores: its gradient is rounding, which Adam scales up.
        if "key" not in name and "k_lin" not in name:
            torch.testing.assert_close(own[name] + offset, bias, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(hidden(ours), hidden(theirs), rtol=1e-3, atol=1e-3)
