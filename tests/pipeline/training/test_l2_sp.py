"""L2-SP: pretrained weights are pulled to their start and new ones to zero, and weight 0 is plain training."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pipeline.settings.recipe import Recipe
from pipeline.training.fit import Penalty
from pipeline.training.objectives import Regularised
from pipeline.training.terms import extra_passes, terms_of
from pipeline.training.terms.l2_sp import BETA, L2SP
from tests.pipeline.training import toy
from tests.pipeline.training.toy import equal, weights

OWN = ("0.weight", "0.bias", "1.weight", "1.bias")


class Model(nn.Module):
    """An encoder of two layers of its own and one that was put into it, and a head."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.backbone = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 4), nn.Linear(4, 4))
        self.head = nn.Linear(4, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.backbone(inputs))


def train(model: Model, penalties: Sequence[Penalty]) -> None:
    toy.train(model, pieces=2, weight_decay=0, penalties=penalties)


def regularised(recipe: Recipe, model: nn.Module) -> Regularised:
    never: Any = pytest.fail
    return Regularised(recipe, model, never, never, never, OWN)


def penalty_of(alpha: float, model: nn.Module, beta: float = BETA) -> L2SP:
    return L2SP(regularised(Recipe(l2_sp=alpha), model), beta)


def test_value_and_gradient_are_those_of_the_equation() -> None:
    model = Model()
    model.backbone[1].requires_grad_(False)
    start = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    penalty = penalty_of(0.3, model, beta=0.05)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape))
    value = penalty()
    value.backward()
    expected = 0.0
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            assert parameter.grad is None
            continue
        own = name.removeprefix("backbone.") in OWN and name.startswith("backbone.")
        rate, pulled_to = (0.3, start[name]) if own else (0.05, torch.zeros_like(parameter))
        torch.testing.assert_close(parameter.grad, rate * (parameter - pulled_to).detach())
        expected += rate / 2 * (parameter - pulled_to).square().sum().item()
    assert value.item() == pytest.approx(expected)


def test_it_starts_with_the_new_weights_alone_and_costs_no_pass() -> None:
    model = Model()
    new = [p for name, p in model.named_parameters() if name.removeprefix("backbone.") not in OWN]
    assert penalty_of(5.0, model, beta=0.0)().item() == 0
    expected = 0.005 * sum(parameter.square().sum().item() for parameter in new)
    assert penalty_of(5.0, model)().item() == pytest.approx(expected)
    assert extra_passes(Recipe(l2_sp=1.0)) == 0


def test_weight_0_is_the_plain_loss_bit_for_bit() -> None:
    plain, off, zero = Model(), Model(), Model()
    assert terms_of(regularised(Recipe(l2_sp=0.0), off)) == ([], [])
    train(plain, ())
    train(off, terms_of(regularised(Recipe(), off))[1])
    train(zero, [penalty_of(0.0, zero, beta=0.0)])
    assert equal(weights(plain), weights(off)) and equal(weights(plain), weights(zero))


def test_new_weights_that_decay_leaves_alone_are_not_pulled() -> None:
    model = Model()
    spared = {"backbone.2.weight"}
    penalty = L2SP(replace(regularised(Recipe(l2_sp=0.3), model), without_decay=spared))
    penalty().backward()
    assert {name for name, each in model.named_parameters() if each.grad is not None and each.grad.any()} == {
        "backbone.2.bias",
        "head.weight",
        "head.bias",
    }
