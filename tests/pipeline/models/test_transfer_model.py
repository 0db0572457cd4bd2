"""Pooling, heads and pair encodings."""

import torch
from transformers import PreTrainedModel

from pipeline.models.transfer_model import TransferModel, build_head, pool


def test_the_mean_leaves_padding_out() -> None:
    """Tokens 1 and 3 and a pad of 100 have mean 2, not 34.67."""
    hidden = torch.tensor([[[1.0], [3.0], [100.0]]])
    mask = torch.tensor([[1, 1, 0]])
    assert pool(hidden, mask, "mean").item() == 2.0
    assert pool(hidden, mask, "cls").item() == 1.0
    assert pool(hidden, torch.zeros_like(mask), "mean").item() == 0.0


def test_a_siamese_batch_is_the_two_sentences_apart(encoder: PreTrainedModel) -> None:
    model = TransferModel(encoder, build_head("difference", 32, 1, 2, 0.0), "siamese", "mean").eval()
    a, b = torch.tensor([[2, 5, 9, 3], [2, 6, 8, 3]]), torch.tensor([[2, 7, 3, 0], [2, 11, 12, 3]])
    both = torch.cat([a, b])
    together = model(both, (both > 0).long())
    u, v = (model.encode(ids, (ids > 0).long()) for ids in (a, b))
    torch.testing.assert_close(together, model.head(u, v), atol=1e-5, rtol=1e-4)


def test_gradients_of_sentences_that_repeat_are_the_same_bits_each_time() -> None:
    """Also with several threads, and more numbers than one of them would take."""
    torch.manual_seed(0)
    model = TransferModel(torch.nn.Identity(), build_head("difference", 256, 1, 2, 0.0), "siamese", "mean")
    vectors, pairs = torch.randn(3, 256, requires_grad=True), torch.randint(3, (512,))
    first, *others = (torch.autograd.grad(model.decide(vectors, pairs).sum(), vectors)[0] for _ in range(10))
    assert all(torch.equal(first, other) for other in others)


def test_a_frozen_backbone_stays_in_evaluation_mode(encoder: PreTrainedModel) -> None:
    model = TransferModel(encoder, build_head("linear", 32, 2, 1, 0.1), "cross", "mean")
    assert model.train().backbone.training
    encoder.requires_grad_(False)
    assert not model.train().backbone.training
    assert model.head.training
