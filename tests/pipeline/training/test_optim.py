"""Each trained parameter is in exactly one group and each frozen one in none; the schedule is linear up and down."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pipeline.training.optim import linear_schedule, parameter_groups


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.layer = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)
        self.tied = nn.Linear(4, 7, bias=False)
        self.tied.weight = self.embedding.weight
        self.value = nn.Linear(4, 4, bias=False)


def names(model: nn.Module, **options: object) -> list[tuple[float, set[str]]]:
    known = {id(parameter): name for name, parameter in model.named_parameters()}
    return [
        (group["weight_decay"], {known[id(parameter)] for parameter in group["params"]})
        for group in parameter_groups(model, 0.01, **options)  # type: ignore[arg-type]
    ]


def test_matrices_decay_and_vectors_do_not() -> None:
    assert names(Model()) == [
        (0.01, {"embedding.weight", "layer.weight", "value.weight"}),
        (0.0, {"layer.bias", "norm.weight", "norm.bias"}),
    ]


def test_named_matrices_are_spared_from_decay() -> None:
    (_, decayed), (_, free) = names(Model(), without_decay={"value.weight"})
    assert "value.weight" in free - decayed


@pytest.mark.parametrize("frozen", [[], ["embedding"], ["layer", "norm"], ["embedding", "layer", "value"]])
def test_each_trained_parameter_is_in_exactly_one_group_and_each_frozen_one_in_none(frozen: list[str]) -> None:
    model = Model()
    for name in frozen:
        model.get_submodule(name).requires_grad_(False)
    grouped = [id(parameter) for group in parameter_groups(model, 0.01) for parameter in group["params"]]
    trained = [id(parameter) for parameter in model.parameters() if parameter.requires_grad]
    assert sorted(grouped) == sorted(trained)
    assert len(set(grouped)) == len(grouped)


def test_no_group_is_empty() -> None:
    model = Model()
    for parameter in model.parameters():
        parameter.requires_grad_(parameter.ndim == 1)
    assert [decay for decay, _ in names(model)] == [0.0]
    model.requires_grad_(False)
    assert parameter_groups(model, 0.01) == []


def test_the_groups_are_what_an_optimiser_takes() -> None:
    optimiser = torch.optim.AdamW(parameter_groups(Model(), 0.3), lr=1.0)
    assert [group["weight_decay"] for group in optimiser.param_groups] == [0.3, 0.0]


@pytest.mark.parametrize(
    ("total", "warmup", "expected"),
    [
        (10, 0.2, [0.5, 1, 1, 7 / 8, 6 / 8, 5 / 8, 4 / 8, 3 / 8, 2 / 8, 1 / 8]),
        (4, 0.0, [1, 0.75, 0.5, 0.25]),
        (4, 1.0, [0.25, 0.5, 0.75, 1]),
        (1, 0.1, [1]),
        (1, 1.0, [1]),
    ],
)
def test_the_rate_rises_and_falls_linearly(total: int, warmup: float, expected: list[float]) -> None:
    assert [linear_schedule(step, total, warmup) for step in range(total)] == pytest.approx(expected)


@pytest.mark.parametrize("total", [1, 2, 7, 100, 1001])
@pytest.mark.parametrize("warmup", [0.0, 0.05, 0.1, 0.5, 1.0])
def test_every_step_learns_and_none_beyond_the_peak(total: int, warmup: float) -> None:
    factors = [linear_schedule(step, total, warmup) for step in range(total)]
    assert min(factors) > 0
    assert max(factors) == 1
    peak = factors.index(1)
    assert factors[: peak + 1] == sorted(factors[: peak + 1])
    assert factors[peak:] == sorted(factors[peak:], reverse=True)
