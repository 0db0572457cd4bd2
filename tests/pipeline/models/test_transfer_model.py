"""Pooling, pair encodings, and heads: what each reads, its size on BERT-base, and if the order of sentences counts."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from pipeline.data.tasks import find_task
from pipeline.models.transfer_model import TransferModel, build_head, pool
from pipeline.runs.build import outputs_of
from pipeline.settings.recipe import Recipe
from pipeline.settings.resolve import resolve


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


SIAMESE = ("linear", "mlp", "cosine", "difference", "difference-mlp", "comparison")


def parameters(heads: dict[str, dict[str, Any]]) -> int:
    """Of the heads that recipes give tasks on a backbone of BERT-base's width."""
    count = 0
    for of, values in ((find_task(task), values) for task, values in heads.items()):
        recipe = resolve(Recipe.parse(values, "test"), of, "fp32")
        vectors = 2 if recipe.encoding == "siamese" else 1
        head = build_head(recipe.head, 768, outputs_of(recipe, of), vectors, recipe.head_dropout)
        count += sum(parameter.numel() for parameter in head.parameters())
    return count


APART = {"encoding": "siamese"}
DIFFERENCE = {"head": "difference-mlp", "pooling": "mean"}


@pytest.mark.parametrize(
    ("heads", "expected"),
    [
        pytest.param(
            {
                "sst": {"head": "mlp"},
                "quora": {"head": "mlp", "one_logit": True, **APART},
                "sts": {"head": "mlp", **APART},
            },
            2_956_807,
            id="Base",
        ),
        pytest.param(
            {
                "sst": {"head": "mlp"},
                "quora": {"one_logit": True, **DIFFERENCE},
                "sts": {"head": "cosine", "cosine_scale": "shifted"},
            },
            2_365_446,
            id="SBERT",
        ),
        pytest.param(
            {"sst": {"head": "mlp"}, "quora": {"one_logit": True, **DIFFERENCE}, "sts": DIFFERENCE},
            4_136_455,
            id="best",
        ),
        pytest.param({"sst": {"head": "linear"}}, 768 * 5 + 5, id="single"),
        pytest.param({"sst": {"head": "linear"}, "quora": {"head": "linear", "one_logit": True, **APART},
                      "sts": {"head": "linear", **APART}}, 6_919, id="Base with single heads"),
    ],
)  # fmt: skip
def test_the_heads_of_liu_and_shen_have_the_parameters_of_their_table(
    heads: dict[str, dict[str, Any]], expected: int
) -> None:
    assert parameters(heads) == expected


def test_a_comparison_is_linear_in_vectors_distance_product_and_cosine() -> None:
    torch.manual_seed(0)
    head = build_head("comparison", 8, 3, 2, 0.0)
    u, v = torch.randn(2, 4, 8).unbind()
    read = [u, v, (u - v).abs(), u * v, F.cosine_similarity(u, v)[:, None]]
    torch.testing.assert_close(head(u, v), torch.cat(read, dim=-1) @ head.out.weight.T + head.out.bias)


@pytest.mark.parametrize("kind", SIAMESE)
def test_the_cosine_head_alone_does_not_mind_the_order_of_two_sentences(kind: Any) -> None:
    torch.manual_seed(0)
    head = build_head(kind, 8, 1, 2, 0.0)
    u, v = torch.randn(2, 4, 8).unbind()
    assert torch.allclose(head(u, v), head(v, u)) == (kind == "cosine")


@pytest.mark.parametrize("kind", SIAMESE)
def test_dropout_is_on_the_sentence_vectors_and_while_training_alone(kind: Any) -> None:
    torch.manual_seed(0)
    head = build_head(kind, 8, 2, 2, 0.9)
    u, v = torch.randn(2, 4, 8).unbind()
    assert torch.equal(head(u, v), head(u, v)) == (kind == "cosine")
    head.eval()
    torch.testing.assert_close(head(u, v), head(u, v), rtol=0, atol=0)


def test_dropout_of_vectors_comes_before_their_distance_and_reaches_a_cosine() -> None:
    torch.manual_seed(0)
    u, v = torch.randn(2, 4, 8).unbind()
    head = build_head("difference", 8, 24, 2, dropout=0.0, vector_dropout=0.5)
    nn.init.eye_(head.out.weight)
    nn.init.zeros_(head.out.bias)
    first, second, distance = head(u, v).split(8, dim=-1)
    assert {0.0, 2.0} == {round(value, 5) for value in (first / u).flatten().tolist()}
    torch.testing.assert_close(distance, (first - second).abs())
    cosine = build_head("cosine", 8, 1, 2, dropout=0.0, vector_dropout=0.5)
    assert not torch.equal(cosine(u, v), cosine(u, v))
    torch.testing.assert_close(cosine.eval()(u, v)[:, 0], F.cosine_similarity(u, v))
