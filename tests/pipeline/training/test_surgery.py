"""Gradient surgery against numbers worked out by hand, and against what theory says of it."""

from itertools import permutations, product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pipeline.training.surgery import Surgery, dual_cone_weights, inner_products, weighting_of

ORDERED = ((1.0, 0.0, 0.0), (-1.0, 1.0, 0.0), (-1.0, -2.0, 1.0))
RULES: tuple[Any, ...] = ("pcgrad", "upgrad")


def combined(rule: Any, gradients: Any, seed: int = 0) -> list[Tensor | None]:
    """What the rule makes of the gradients of N tasks, each a list of parts, some None."""
    sizes = [next(len(part) for part in parts if part is not None) for parts in zip(*gradients, strict=True)]
    parameters = [nn.Parameter(torch.zeros(size)) for size in sizes]
    surgery = Surgery(weighting_of(rule, len(gradients)), parameters)
    for parts in gradients:
        for parameter, part in zip(parameters, parts, strict=True):
            parameter.grad = None if part is None else torch.tensor(part)
        surgery.take()
    torch.manual_seed(seed)
    surgery.give()
    return [parameter.grad for parameter in parameters]


def shared(rule: Any, gradients: Any, seed: int = 0) -> list[float]:
    (found,) = combined(rule, [[gradient] for gradient in gradients], seed)
    return found.tolist()


def projected(gradients: Any, orders: Any) -> np.ndarray:
    """PCGrad as its paper writes it: each gradient i against the others in ``orders[i]``, then the sum."""
    every = np.array(gradients)
    total = np.zeros(every.shape[1])
    for own, order in zip(every, orders, strict=True):
        found = own.copy()
        for other in every[list(order)]:
            if found @ other < 0:
                found -= found @ other / (other @ other) * other
        total += found
    return total


def test_pcgrad_of_three_depends_on_the_order_and_on_nothing_else() -> None:
    each = [permutations([j for j in range(3) if j != i]) for i in range(3)]
    possible = {tuple(projected(ORDERED, orders).round(4)) for orders in product(*each)}
    found = {tuple(np.round(shared("pcgrad", ORDERED, seed), 4)) for seed in range(60)}
    ascending, descending = (-1.0833, -0.6667, 1.5833), (0.25, -0.5833, 1.3333)
    assert {ascending, descending} <= found
    assert found == possible


@pytest.mark.parametrize("rule", RULES)
def test_heads_keep_their_own_gradients(rule: str) -> None:
    """(1, 1, 0) and (-1, 0, 1) in the shared weight and two heads: the shared one cancels, each head keeps 1."""
    weight, one, other = combined(rule, [[[1.0], [1.0], None], [[-1.0], None, [1.0]]])
    assert weight.item() == pytest.approx(0, abs=1e-9)
    assert (one.item(), other.item()) == (1, 1)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    "gradients",
    [
        ((1.0, 0.0, 0.0), (0.0, -2.0, 0.0), (0.0, 0.0, 3.0)),
        ((1.0, 2.0), (3.0, 0.5)),
        ((1.0, 2.0), (1.0, 2.0), (2.0, 4.0)),
        ((1e-4, 0.0), (0.0, 2e-4)),
    ],
)
def test_gradients_without_conflict_are_added_up(rule: str, gradients: Any) -> None:
    assert shared(rule, gradients) == pytest.approx(np.sum(gradients, axis=0).tolist(), rel=1e-6)


def test_a_missing_part_counts_as_zero() -> None:
    """The third part is shared by two of three tasks: for the first it is zero."""
    parts = [[[1.0, 0.0], None], [[-1.0, 1.0], [2.0]], [[0.0, -1.0], [-1.0]]]
    zeros = [[[1.0, 0.0], [0.0]], *parts[1:]]
    for seed in range(4):
        for found, expected in zip(combined("pcgrad", parts, seed), combined("pcgrad", zeros, seed), strict=True):
            assert found is not None and expected is not None
            torch.testing.assert_close(found, expected)


def test_what_no_task_trains_stays_without_a_gradient() -> None:
    used, unused = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
    surgery = Surgery(weighting_of("pcgrad", 2), [used, unused])
    for gradient in (1.0, 2.0):
        used.grad = torch.tensor([gradient])
        surgery.take()
    surgery.give()
    assert (used.grad, unused.grad) == (torch.tensor([3.0]), None)


def test_upgrad_conflicts_with_no_task() -> None:
    generator = np.random.default_rng(0)
    for tasks in (2, 3, 5):
        for _ in range(20):
            gradients = generator.normal(size=(tasks, 4)).astype(np.float32)
            found = np.array(shared("upgrad", gradients.tolist()))
            assert (gradients @ found >= -1e-5).all()


def test_upgrad_is_torchjds_times_the_number_of_tasks() -> None:
    """torchjd's documentation: (-4, 1, 1) and (6, 1, 1) come to the mean (.2929, 1.9004, 1.9004)."""
    found = shared("upgrad", [(-4.0, 1.0, 1.0), (6.0, 1.0, 1.0)])
    assert found == pytest.approx([2 * 0.2929, 2 * 1.9004, 2 * 1.9004], abs=2e-3)


def test_weights_in_the_dual_cone_are_the_least_ones() -> None:
    generator = np.random.default_rng(2)
    gradients = generator.normal(size=(4, 3))  # more than dimensions: the products are singular
    products, target = gradients @ gradients.T, np.eye(4)[:1]
    (found,) = dual_cone_weights(target, products)
    assert (found >= target[0] - 1e-9).all()
    least = found @ products @ found
    for _ in range(300):
        other = target[0] + generator.exponential(size=4) * generator.integers(0, 2, size=4)
        assert other @ products @ other >= least - 1e-9


def test_inner_products_are_those_of_all_parts_together() -> None:
    generator = torch.Generator().manual_seed(0)
    gradients = [[torch.randn(3, 2, generator=generator), torch.randn(5, generator=generator)] for _ in range(3)]
    whole = torch.stack([torch.cat([part.flatten() for part in parts]) for parts in gradients]).double()
    torch.testing.assert_close(inner_products(gradients), whole @ whole.T, atol=1e-5, rtol=1e-5)
