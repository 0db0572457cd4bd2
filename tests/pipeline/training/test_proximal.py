"""Bregman proximal point: the teacher is a running mean of its own, and the term pulls towards it."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pipeline.data.batches import Piece
from pipeline.settings.recipe import Recipe
from pipeline.training.objectives import Regularised, squared_error
from pipeline.training.progress import Progress
from pipeline.training.terms.proximal import Proximal
from tests.pipeline.training import toy
from tests.pipeline.training.toy import equal, make_model, weights


def forward(model: Any, piece: Piece) -> Tensor:
    return model(toy.X[piece.batch["rows"]])


def proximal(model: nn.Module, weight: float = 1.0) -> Proximal:
    return Proximal(Regularised(Recipe(bregman=weight), model, forward, lambda _: squared_error, pytest.fail))


def train(model: nn.Module, weight: float | None) -> Progress:
    """In two pieces a step, without the term where there is no ``weight``."""
    terms = [] if weight is None else [proximal(model, weight)]

    def loss(model: nn.Module, piece: Piece) -> Tensor:
        outputs = forward(model, piece)
        error = F.mse_loss(outputs.squeeze(-1), toy.Y[piece.batch["rows"]])
        return sum((term(model, piece, outputs) for term in terms), error)

    return toy.train(model, pieces=2, loss=loss, companions=terms)


def test_the_term_is_zero_before_the_first_step_in_evaluation_mode() -> None:
    model = make_model().eval()
    term, piece = proximal(model), Piece({"rows": torch.arange(8)})
    term.start({})
    assert term(model, piece, forward(model, piece)).item() == 0
    model.train()  # its dropout is the student's alone
    assert term(model, piece, forward(model, piece)).item() > 0


def test_after_a_step_the_teacher_is_the_mean_that_the_formula_gives() -> None:
    model = make_model()
    term, before = proximal(model), weights(model)
    term.start({})
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    after = weights(model)
    term.after_step(1, 100)
    for teacher, old, new in zip(term.teacher.values(), before, after, strict=True):
        torch.testing.assert_close(teacher, 0.99 * old + 0.01 * new)
    assert equal(weights(model), after)


def test_the_teacher_shares_what_is_frozen_and_nothing_that_trains() -> None:
    model = make_model()
    model[0].requires_grad_(False)
    term = proximal(model)
    term.start({})
    assert set(term.teacher) == {"2.weight", "2.bias"}
    live = dict(model.named_parameters())
    assert all(tensor.data_ptr() != live[name].data_ptr() for name, tensor in term.teacher.items())
    assert not any(tensor.requires_grad for tensor in term.teacher.values())


def test_it_leaves_modes_gradients_of_the_teacher_and_random_numbers_alone() -> None:
    model = make_model().train()
    model[2].eval()  # as the frozen layers of a model are while the rest trains
    term, piece = proximal(model), Piece({"rows": torch.arange(8)})
    term.start({})
    outputs = forward(model, piece)
    state = torch.get_rng_state()
    value = term(model, piece, outputs)
    assert torch.equal(torch.get_rng_state(), state)
    assert [module.training for module in model] == [True, True, False]
    value.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    # The gradient is that of the outputs' distance from a constant.
    grads = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    fixed = make_model().eval()(toy.X[:8]).detach()
    squared_error(outputs := outputs.detach().requires_grad_(), fixed).backward()
    torch.testing.assert_close(grads[-1], outputs.grad.sum(0))


class TwoHeads(nn.Module):
    """One encoder under two names, as in joint training."""

    def __init__(self) -> None:
        super().__init__()
        encoder = nn.Linear(6, 8)
        self.first = nn.Sequential(encoder, nn.Linear(8, 1))
        self.second = nn.Sequential(encoder, nn.Linear(8, 1))

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.cat([self.first(inputs), self.second(inputs)], dim=-1)


def test_a_module_that_two_tasks_share_has_its_own_weights_again() -> None:
    torch.manual_seed(0)
    model = TwoHeads()
    term, piece = proximal(model), Piece({"rows": torch.arange(8)})
    term.start({})
    before, live = weights(model), list(model.parameters())
    with torch.no_grad():
        model.first[0].weight.add_(1)
    outputs = forward(model, piece)
    value = term(model, piece, outputs)
    assert [id(parameter) for parameter in model.parameters()] == [id(parameter) for parameter in live]
    torch.testing.assert_close(forward(model, piece), outputs)
    # The teacher is the model before the change, seen by both heads.
    for parameter, old in zip(model.parameters(), before, strict=True):
        parameter.data = old
    torch.testing.assert_close(value, squared_error(outputs, forward(model, piece)))


def test_it_keeps_training_near_its_own_past() -> None:
    plain, near = make_model(0.0), make_model(0.0)
    train(plain, None)
    train(near, 100.0)
    start = weights(make_model())
    moved = [sum((a - b).norm() for a, b in zip(weights(model), start, strict=True)) for model in (plain, near)]
    assert moved[1] < 0.5 * moved[0]
