"""Divergences: worked values and gradients, one logit as two, and the batch mean."""

import pytest
import torch

from pipeline.data.tasks import find_task
from pipeline.settings.recipe import Recipe
from pipeline.training.terms.term import class_divergence, divergence_of, squared_error

Z, Y = torch.tensor([[1.0, 2.0, 0.0]]), torch.tensor([[0.0, 1.0, 2.0]])


def gradients(one: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor, ...]:
    one, other = one.clone().requires_grad_(), other.clone().requires_grad_()
    return torch.autograd.grad(class_divergence(one, other), [one, other])


def test_the_symmetric_divergence_of_classes_is_that_of_its_formula_and_of_two_kl_terms() -> None:
    assert class_divergence(Z, Y).item() == pytest.approx(1.725631, abs=1e-6)
    kl = torch.nn.KLDivLoss(reduction="batchmean", log_target=True)
    log_p, log_q = Z.log_softmax(-1), Y.log_softmax(-1)
    torch.testing.assert_close(class_divergence(Z, Y), kl(log_p, log_q) + kl(log_q, log_p))


def test_its_gradient_is_the_difference_of_probabilities() -> None:
    """Each target is held fixed; differentiating those too gives (.2208, .6002, -.8210)."""
    for_z, for_y = gradients(Z, Y)
    assert for_z[0].tolist() == pytest.approx([0.1547, 0.4205, -0.5752], abs=1e-4)
    torch.testing.assert_close(for_y, -for_z)
    z = Z.clone().requires_grad_()
    p, q = z.softmax(-1), Y.softmax(-1)
    (full,) = torch.autograd.grad(((p - q) * (z - Y)).sum(), z)
    assert full[0].tolist() == pytest.approx([0.2208, 0.6002, -0.8210], abs=1e-4)


def test_one_logit_is_the_bernoulli_case_and_not_zero() -> None:
    z, y = torch.tensor([[2.0]]), torch.tensor([[-1.0]])
    assert class_divergence(z, y).item() == pytest.approx(1.835567, abs=1e-6)
    (gradient, _) = gradients(z, y)
    assert gradient.item() == pytest.approx((z.sigmoid() - y.sigmoid()).item())
    # Two classes by two logits, of which one is held at zero.
    pair = [torch.cat([torch.zeros_like(one), one], dim=-1) for one in (z, y)]
    torch.testing.assert_close(class_divergence(*pair), class_divergence(z, y))


@pytest.mark.parametrize("divergence", [class_divergence, squared_error])
@pytest.mark.parametrize("width", [1, 3])
def test_it_is_a_batch_mean_that_is_symmetric_and_zero_where_outputs_agree(divergence, width) -> None:  # type: ignore[no-untyped-def]
    generator = torch.Generator().manual_seed(0)
    one, other = (torch.randn(6, width, generator=generator) for _ in range(2))
    rows = torch.stack([divergence(a[None], b[None]) for a, b in zip(one, other, strict=True)])
    assert (rows > 0).all()
    torch.testing.assert_close(divergence(one, other), rows.mean())
    torch.testing.assert_close(divergence(one, other), divergence(other, one))
    assert divergence(one, one).item() == 0


@pytest.mark.parametrize(
    ("task", "head", "expected"),
    [
        ("sst", "linear", class_divergence),
        ("quora", "linear", class_divergence),
        ("quora", "cosine", squared_error),
        ("sts", "linear", squared_error),
        ("sts", "cosine", squared_error),
    ],
)
def test_the_kind_of_output_decides(task, head, expected) -> None:  # type: ignore[no-untyped-def]
    assert divergence_of(find_task(task), Recipe(head=head)) is expected
