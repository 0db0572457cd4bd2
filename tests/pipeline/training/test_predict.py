"""Predictions of a split: each different sentence is encoded once, and nobody can tell from the results."""

import dataclasses
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import Tensor
from transformers import PreTrainedModel

from pipeline.data.batches import collate
from pipeline.data.tokens import TokenisedSplit
from pipeline.models.transfer_model import TransferModel, build_head
from pipeline.system.errors import PipelineError
from pipeline.training import objectives
from pipeline.training.objectives import mean_outputs

PAIR_HEADS = ("linear", "mlp", "difference", "cosine")


def siamese_split(rows: int, sentences: int, types: bool = True, seed: int = 0) -> TokenisedSplit:
    """Random pairs of ``sentences`` different sentences of unlike lengths."""
    rng = np.random.default_rng(seed)
    pool = [rng.integers(5, 20, size=rng.integers(3, 15)).astype(np.int32) for _ in range(sentences)]
    a, b = ([pool[i] for i in rng.integers(sentences, size=rows)] for _ in range(2))
    types_a = [np.zeros_like(ids) for ids in a] if types else None
    return TokenisedSplit(a, types_a, b, np.arange(rows, dtype=np.float64))


def plain_outputs(model: TransferModel, split: TokenisedSplit) -> Tensor:
    """In the rows' order, each pair encoded for itself."""
    found = []
    with torch.no_grad():
        for row in range(len(split)):
            both = [split.a[row], split.b[row]]
            vectors = [model.encode(ids := torch.from_numpy(x).long()[None], torch.ones_like(ids)) for x in both]
            found.append(model.decide(torch.cat(vectors)))
    return torch.cat(found)


def outputs(model: TransferModel, split: TokenisedSplit, batch_size: int = 7) -> Tensor:
    AcceleratorState._reset_state()  # an earlier test may have chosen bf16
    return mean_outputs(model, [split], batch_size=batch_size, pad_token_id=0, accelerator=Accelerator(cpu=True))


@pytest.fixture
def make(encoder: PreTrainedModel) -> Callable[..., TransferModel]:
    def model(head: Any = "difference", pooling: Any = "mean", encoding: Any = "siamese") -> TransferModel:
        torch.manual_seed(0)
        vectors = 2 if encoding == "siamese" else 1
        return TransferModel(encoder, build_head(head, 32, 1, vectors, 0.0), encoding, pooling).eval()

    return model


def counted(model: TransferModel) -> list[int]:
    """Rows that each forward pass of the backbone sees from now on."""
    seen: list[int] = []
    model.backbone.register_forward_hook(
        lambda _, inputs, kwargs, output: seen.append(len(kwargs["input_ids"])), with_kwargs=True
    )
    return seen


@pytest.mark.covering(2)
@pytest.mark.parametrize("head", PAIR_HEADS)
@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("sentences", [1, 9, 500])
def test_outputs_are_those_of_each_pair_by_itself(head: str, pooling: str, sentences: int, make) -> None:
    model, split = make(head, pooling), siamese_split(60, sentences)
    torch.testing.assert_close(outputs(model, split), plain_outputs(model, split), atol=2e-6, rtol=1e-5)


def test_each_different_sentence_is_encoded_once(make: Callable[..., TransferModel]) -> None:
    model, split = make(), siamese_split(60, 9)
    seen = counted(model)
    outputs(model, split)
    assert sum(seen) == len({ids.tobytes() for ids in split.a + split.b}) == 9


@dataclass(frozen=True)
class Process:
    """What a share of the work asks of an Accelerator."""

    process_index: int
    num_processes: int = 2
    device: str = "cpu"

    def autocast(self) -> AbstractContextManager[None]:
        return nullcontext()


@pytest.mark.parametrize("encoding", ["cross", "siamese"])
def test_two_processes_share_the_batches_and_both_get_all(encoding: str, make, monkeypatch) -> None:
    """Threads stand for the processes, and wait for each other where those would gather."""
    split = siamese_split(30, 11)
    if encoding == "cross":
        split = dataclasses.replace(split, b=None)
    model = make("difference" if encoding == "siamese" else "linear", encoding=encoding)
    expected = outputs(model, split, batch_size=2)
    barrier, shares, seen = threading.Barrier(2, timeout=30), dict[int, list[Any]](), counted(model)

    def gather(found: list[Any]) -> list[Any]:
        shares[barrier.wait()] = found
        barrier.wait()
        return shares[0] + shares[1]

    monkeypatch.setattr(objectives, "gather_object", gather)
    with ThreadPoolExecutor(2) as threads:
        found = threads.map(
            lambda index: mean_outputs(model, [split], batch_size=2, pad_token_id=0, accelerator=Process(index)),
            range(2),
        )
        for together in found:
            torch.testing.assert_close(together, expected, atol=2e-6, rtol=1e-5)
    assert sum(seen) == (30 if encoding == "cross" else 11)


def test_numbers_that_are_not_finite_are_an_error(make: Callable[..., TransferModel]) -> None:
    model = make("linear")
    torch.nn.init.constant_(model.head.out.bias, float("nan"))
    with pytest.raises(PipelineError, match="no longer finite"):
        outputs(model, siamese_split(5, 3))


@pytest.mark.parametrize("head", ["linear", "difference", "cosine"])
def test_a_training_batch_with_duplicates_has_the_gradients_of_the_plain_one(head, make) -> None:
    model, split = make(head), siamese_split(24, 7)
    rows = np.arange(24)
    batch = collate(split, rows, 0)
    assert batch["pairs"].shape == (48,)
    assert len(batch["input_ids"]) == 7
    every = batch["pairs"]
    plain = {name: batch[name][every] for name in ("input_ids", "attention_mask", "token_type_ids")}
    joined = {name: batch[name] for name in (*plain, "pairs")}
    gradients = []
    for inputs in (plain, joined):
        model.zero_grad()
        (model(**inputs).squeeze(-1) - batch["labels"] / 24).square().mean().backward()
        gradients.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})
    assert gradients[0].keys() == gradients[1].keys() != set()
    scale = max(gradient.abs().max().item() for gradient in gradients[0].values())
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, atol=1e-6 * max(1.0, scale), rtol=1e-4)
