"""What an objective's loss pulls towards is what it predicts, and its values are those worked out by hand.

Of a split each different sentence is encoded once, and nobody can tell from the result.
"""

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
from torch.nn import functional as F
from transformers import PreTrainedModel

from pipeline.data.batches import collate
from pipeline.data.labels import as_matrix
from pipeline.data.tasks import Task, find_task
from pipeline.data.tokens import TokenisedSplit
from pipeline.models.transfer_model import TransferModel, build_head
from pipeline.settings.recipe import Recipe
from pipeline.settings.resolve import resolve
from pipeline.system.errors import PipelineError
from pipeline.training import objectives
from pipeline.training.objectives import Objective, balanced_weights, mean_outputs, objective_of


def objective_for(task: Task, head: Any, cosine_scale: Any = "clamped", one_logit: bool = False) -> Objective:
    return objective_of(task, Recipe(head=head, cosine_scale=cosine_scale, one_logit=one_logit))


SST, QUORA, STS = (find_task(name) for name in ("sst", "quora", "sts"))
TAGS = Task.model_validate(SST.model_dump() | {"kind": "labels", "metric": "micro-f1"})
OBJECTIVES: dict[str, tuple[Objective, int, Any]] = {
    "classes": (objective_for(SST, "linear"), 5, torch.tensor([0, 4, 2, 2, 1, 3])),
    "labels": (objective_for(TAGS, "linear"), 5, torch.eye(6)[:, :5]),
    "cosine classes": (objective_for(QUORA, "cosine"), 1, torch.tensor([0, 1, 1, 0, 0, 1])),
    "score": (objective_for(STS, "linear"), 1, torch.tensor([0.0, 5.0, 2.5, 1.0, 4.2, 3.3], dtype=torch.float64)),
    "one logit": (objective_for(QUORA, "linear", one_logit=True), 1, torch.tensor([0, 1, 1, 0, 0, 1])),
    "shifted cosine": (
        objective_for(STS, "cosine", "shifted"),
        1,
        torch.tensor([0, 5, 2.5, 1, 4.2, 3.3], dtype=torch.float64),
    ),
    "cosine score": (objective_for(STS, "cosine"), 1, torch.tensor([0, 5, 2.5, 1, 4.2, 3.3], dtype=torch.float64)),
}


def scored(low: float, high: float) -> Task:
    return Task.model_validate(STS.model_dump() | {"range": (low, high)})


def cosine(u: list[float], v: list[float]) -> Tensor:
    """The outputs (1, 1) of the cosine head."""
    head = build_head("cosine", width=len(u), outputs=1, vectors=2, dropout=0.1)
    outputs: Tensor = head(torch.tensor([u]), torch.tensor([v]))
    return outputs


@pytest.mark.parametrize(("label", "expected"), [(1, 0.04), (0, 0.96)])
def test_the_cosine_embedding_loss_is_the_one_worked_out_by_hand(label: int, expected: float) -> None:
    # u = (3, 4), v = (4, 3): cos = 24 / 25.
    outputs, target = cosine([3.0, 4.0], [4.0, 3.0]), torch.tensor([label])
    loss = objective_for(QUORA, "cosine").loss(outputs, target)
    assert loss.item() == pytest.approx(expected, abs=1e-6)
    stock = F.cosine_embedding_loss(torch.tensor([[3.0, 4.0]]), torch.tensor([[4.0, 3.0]]), 2 * target - 1)
    assert loss.item() == pytest.approx(stock.item(), abs=1e-6)


def test_a_pair_is_a_duplicate_if_its_cosine_is_above_0_and_its_probability_agrees() -> None:
    outputs = torch.tensor([[0.3], [1e-6], [0.0], [-1e-6], [-1.0]])
    prediction = objective_for(QUORA, "cosine").predict(outputs)
    assert prediction.values.tolist() == [1, 1, 0, 0, 0]
    assert prediction.probabilities.sum(axis=1) == pytest.approx(np.ones(5))
    assert prediction.probabilities[:, 1] == pytest.approx([0.65, 0.5, 0.5, 0.5, 0.0], abs=1e-5)


@pytest.mark.parametrize("cos", [-1.0, -0.5, 0.0, 0.5, 1.0])
def test_sts_predicts_5_times_the_positive_part_of_the_cosine(cos: float) -> None:
    outputs = cosine([1.0, 0.0], [cos, (1 - cos**2) ** 0.5])
    assert objective_for(STS, "cosine").predict(outputs).values == pytest.approx([5 * max(0.0, cos)], abs=1e-6)


@pytest.mark.parametrize(("cos", "label"), [(0.8, 5.0), (-0.6, 2.5), (0.0, 0.0)])
def test_the_cosine_of_sts_is_trained_unclamped_towards_a_fifth_of_the_score(cos: float, label: float) -> None:
    loss = objective_for(STS, "cosine").loss(torch.tensor([[cos]]), torch.tensor([label], dtype=torch.float64))
    assert loss.item() == pytest.approx((cos - label / 5) ** 2)


@pytest.mark.parametrize(("low", "high"), [(0.0, 5.0), (1.0, 5.0), (-3.0, 3.0), (0.0, 100.0)])
def test_scores_are_brought_to_the_unit_range_in_the_loss_and_back_in_the_prediction(low: float, high: float) -> None:
    objective = objective_for(scored(low, high), "linear")
    labels = torch.linspace(low, high, 11, dtype=torch.float64)
    perfect = torch.linspace(-1, 1, 11).unsqueeze(-1)
    assert objective.loss(perfect, labels).item() == pytest.approx(0, abs=1e-12)
    assert objective.predict(perfect).values == pytest.approx(labels.numpy(), abs=1e-5 * (high - low))
    # Off by half of the range everywhere.
    assert objective.loss(perfect + 1, labels).item() == pytest.approx(1)


def test_classes_are_predicted_by_the_largest_output() -> None:
    outputs = torch.tensor([[2.0, 0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0, 1.0]])
    prediction = objective_for(SST, "linear").predict(outputs)
    assert prediction.values.tolist() == [0, 4]
    expected = np.exp(outputs.numpy()) / np.exp(outputs.numpy()).sum(axis=1, keepdims=True)
    assert prediction.probabilities == pytest.approx(expected)


def test_labels_are_trained_with_a_sigmoid_a_class_and_predicted_above_one_half() -> None:
    objective, width, labels = OBJECTIVES["labels"]
    outputs = torch.randn(6, width, generator=torch.Generator().manual_seed(0)).requires_grad_()
    expected = torch.nn.BCEWithLogitsLoss()(outputs, labels)
    assert objective.loss(outputs, labels).item() == pytest.approx(expected.item())
    torch.testing.assert_close(
        *(torch.autograd.grad(loss, outputs)[0] for loss in (objective.loss(outputs, labels), expected))
    )
    prediction = objective.predict(outputs.detach())
    assert prediction.probabilities is not None
    assert prediction.probabilities == pytest.approx(1 / (1 + np.exp(-outputs.detach().numpy())))
    assert np.array_equal(as_matrix(prediction.values), prediction.probabilities > 0.5)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_loss_is_the_mean_over_the_batch(name: str) -> None:
    objective, width, labels = OBJECTIVES[name]
    outputs = torch.randn(len(labels), width, generator=torch.Generator().manual_seed(1)).clamp(-1, 1)
    alone = [objective.loss(outputs[i : i + 1], labels[i : i + 1]).item() for i in range(len(labels))]
    assert objective.loss(outputs, labels).item() == pytest.approx(np.mean(alone), rel=1e-5)
    assert len(set(alone)) > 1


# The three ways to read one number that the recipes of the reports need.


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("weights", [None, torch.tensor([0.6, 3.0])])
def test_one_logit_is_cross_entropy_over_two_of_which_one_is_0(weights: Tensor | None, smoothing: float) -> None:
    """The same loss and gradient, prediction and probabilities: sigmoid(z) is softmax(0, z)."""
    one, two = (
        objective_of(QUORA, Recipe(head="linear", one_logit=one_logit, label_smoothing=smoothing), weights)
        for one_logit in (True, False)
    )
    logits = torch.randn(64, 1, generator=torch.Generator().manual_seed(0)).mul(3).requires_grad_()
    both = torch.cat([torch.zeros_like(logits), logits], dim=-1)
    labels = torch.arange(64) % 2
    losses = [one.loss(logits, labels), two.loss(both, labels)]
    assert losses[0].item() == pytest.approx(losses[1].item(), rel=1e-6)
    first, second = (torch.autograd.grad(loss, logits, retain_graph=True)[0] for loss in losses)
    torch.testing.assert_close(first, second)
    read = [one.predict(logits.detach()), two.predict(both.detach())]
    assert np.array_equal(read[0].values, read[1].values)
    assert read[0].probabilities == pytest.approx(read[1].probabilities, abs=1e-6)


@pytest.mark.parametrize("cos", [-1.0, -0.5, 0.0, 0.5, 1.0])
@pytest.mark.parametrize(("low", "high"), [(0.0, 5.0), (1.0, 5.0)])
def test_a_shifted_cosine_brings_its_whole_range_to_that_of_the_score(cos: float, low: float, high: float) -> None:
    objective = objective_for(scored(low, high), "cosine", "shifted")
    expected = low + (high - low) * (cos + 1) / 2
    assert objective.predict(torch.tensor([[cos]])).values == pytest.approx([expected])
    label = torch.tensor([expected], dtype=torch.float64)
    assert objective.loss(torch.tensor([[cos]]), label).item() == pytest.approx(0, abs=1e-12)


# Class weights and label smoothing.

LABELS = torch.tensor([0, 0, 0, 0, 0, 0, 2, 2, 2, 4])


def test_balanced_weights_are_inverse_frequencies_with_mean_1_over_the_rows() -> None:
    weights = balanced_weights(LABELS.numpy(), 5)
    assert weights.tolist() == pytest.approx([10 / 18, 1, 10 / 9, 1, 10 / 3])  # classes 1 and 3 have no row
    assert weights[LABELS].mean().item() == pytest.approx(1)
    shares = [weights[LABELS][label == LABELS].sum().item() for label in (0, 2, 4)]
    assert shares == pytest.approx([10 / 3] * 3)  # each class counts alike
    assert balanced_weights(np.array([0, 1, 1, 0]), 2).tolist() == [1, 1]


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.9])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_loss_of_classes_is_cross_entropy_as_pytorch_weights_and_smooths_it(
    smoothing: float, weighted: bool
) -> None:
    outputs = torch.randn(len(LABELS), 5, generator=torch.Generator().manual_seed(0)).mul(3).requires_grad_()
    weights = balanced_weights(LABELS.numpy(), 5) if weighted else None
    loss = objective_of(SST, Recipe(head="linear", label_smoothing=smoothing), weights).loss(outputs, LABELS)
    # The weights of these rows add up to their number, by which PyTorch's mean is divided.
    stock = F.cross_entropy(outputs, LABELS, weights, label_smoothing=smoothing)
    torch.testing.assert_close(loss, stock)
    torch.testing.assert_close(*(torch.autograd.grad(each, outputs)[0] for each in (loss, stock)))


@pytest.mark.parametrize("name", ["classes", "one logit", "cosine classes"])
def test_a_weighted_loss_is_a_mean_over_rows_however_a_batch_is_cut(name: str) -> None:
    """With PyTorch's own mean, a piece whose rows are all of one class would not feel its weight."""
    _, width, labels = OBJECTIVES[name]
    task, head = (SST, "linear") if width == 5 else (QUORA, "cosine" if name == "cosine classes" else "linear")
    recipe = Recipe(head=head, one_logit=name == "one logit", label_smoothing=0.1)
    weights = torch.linspace(0.5, 2, len(task.classes))
    objective = objective_of(task, recipe, weights)
    outputs = torch.randn(len(labels), width, generator=torch.Generator().manual_seed(1)).clamp(-1, 1)
    whole = objective.loss(outputs, labels)
    pieces = [objective.loss(outputs[rows], labels[rows]) * len(rows) for rows in (range(1), range(1, 6))]
    torch.testing.assert_close(whole, sum(pieces) / len(labels))
    single = objective_of(task, recipe.changed({"label_smoothing": 0.0})).loss
    if name != "classes":  # without smoothing the loss of a row is its own, times its weight
        plain = objective_of(task, recipe.changed({"label_smoothing": 0.0}), weights).loss(outputs, labels)
        rows = [weights[labels[i]] * single(outputs[i : i + 1], labels[i : i + 1]) for i in range(len(labels))]
        torch.testing.assert_close(plain, sum(rows) / len(rows))


@pytest.mark.parametrize(
    ("head", "scale", "ratio", "score_of"),
    [
        ("linear", "clamped", 6.25, lambda outputs: 2.5 + 2.5 * outputs),
        ("cosine", "clamped", 25.0, lambda outputs: 5 * outputs),
        ("cosine", "shifted", 6.25, lambda outputs: 2.5 * (outputs + 1)),
    ],
)
def test_a_raw_loss_on_0_to_5_is_that_of_the_same_predictions_brought_to_its_range_times_a_square(
    head: Any, scale: Any, ratio: float, score_of: Any
) -> None:
    """The reports' squared errors are of scores from 0 to 5: 6.25 times those from -1 to 1, 25 times those to 1."""
    recipe = Recipe(head=head, cosine_scale=scale)
    normalised, raw = (objective_of(STS, recipe.changed({"score_loss": loss})) for loss in ("normalised", "raw"))
    outputs, labels = torch.rand(7, 1, dtype=torch.float64), 5 * torch.rand(7, dtype=torch.float64)
    scores = score_of(outputs)
    own = scores if head == "linear" else outputs  # a head with weights gives the score itself
    torch.testing.assert_close(raw.loss(own, labels), ratio * normalised.loss(outputs, labels))
    torch.testing.assert_close(raw.loss(own, labels), F.mse_loss(scores.squeeze(-1), labels))
    np.testing.assert_allclose(raw.predict(own).values, scores.squeeze(-1).numpy())


RAW: dict[str, Any] = {"name": "pairs", "kind": "classes", "text": ["a", "b"], "label": "same", "metric": "accuracy"}
COSINE = Recipe.parse({"encoding": "siamese", "head": "cosine"}, "test")


def task(*classes: str, similar: str | None = None) -> Task:
    return Task.parse({**RAW, "classes": list(classes), **({"similar": similar} if similar else {})}, "task.toml")


@pytest.mark.parametrize("weights", [None, torch.tensor([0.5, 2.0])])
def test_the_first_class_with_the_key_is_as_the_second_without(weights: torch.Tensor | None) -> None:
    usual, keyed = task("nein", "ja"), task("ja", "nein", similar="ja")
    outputs, labels = torch.linspace(-0.9, 0.9, 12).unsqueeze(-1), torch.tensor([0, 1] * 6)
    flipped = None if weights is None else weights.flip(0)
    one = objective_of(usual, resolve(COSINE, usual, "fp32"), weights)
    other = objective_of(keyed, resolve(COSINE, keyed, "fp32"), flipped)
    assert torch.equal(one.loss(outputs, labels), other.loss(outputs, 1 - labels))
    assert torch.equal(one.read(outputs), other.read(outputs).flip(-1))
    told, reversed_ = one.predict(outputs), other.predict(outputs)
    np.testing.assert_array_equal(told.values, 1 - reversed_.values)
    np.testing.assert_array_equal(told.probabilities, reversed_.probabilities[:, ::-1])


@pytest.mark.parametrize(
    "raw",
    [
        {"classes": ["a", "b"], "similar": "c"},
        {"classes": ["a", "b", "c"], "similar": "a"},
        {"classes": ["a", "b"], "similar": "a", "text": ["a"]},
        {"kind": "score", "range": [0, 1], "metric": "pearson", "similar": "a"},
    ],
)
def test_a_class_that_is_none_is_refused(raw: dict[str, Any]) -> None:
    with pytest.raises(PipelineError, match="similar"):
        Task.parse({**RAW, **raw}, "task.toml")


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
