"""SMART: the worked one-dimensional case, what it costs, and that it leaves everything else alone."""

import copy
import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from pipeline.data.batches import Piece, inputs_of
from pipeline.data.tasks import find_task
from pipeline.models.lean import make_lean
from pipeline.models.transfer_model import TransferModel, build_head
from pipeline.settings.recipe import Recipe
from pipeline.training.objectives import Regularised, class_divergence, objective_of, squared_error
from pipeline.training.terms.smart import Smoothness, perturbation, perturbed
from tests.pipeline.methods.adapted import add_adapter

IDS = torch.tensor([[2, 5, 8, 3, 0], [2, 9, 10, 11, 3], [2, 6, 3, 0, 0], [2, 7, 12, 3, 0]])
BATCH = {
    "input_ids": IDS, "attention_mask": (IDS != 0).long(), "token_type_ids": torch.zeros_like(IDS),
    "rows": torch.arange(4), "labels": torch.tensor([0, 1, 1, 0]),
}  # fmt: skip


def forward(model: Any, piece: Piece) -> Tensor:
    return model(**inputs_of(piece.batch))


class Doubling(nn.Module):
    """f(e) = 2 e, from an embedding of one number."""

    def __init__(self) -> None:
        super().__init__()
        self.embeddings = nn.Embedding(2, 1)

    def forward(self, input_ids: Tensor) -> Tensor:
        return 2 * self.embeddings(input_ids)[:, 0]


def term_of(encoders: Sequence[nn.Module], divergence: Callable[..., Tensor], **settings: Any) -> Smoothness:
    recipe = Recipe(smart={"weight": 1.0, **settings})
    return Smoothness(Regularised(recipe, encoders[0], forward, lambda _: divergence, lambda _: encoders))


@pytest.mark.parametrize(
    ("settings", "delta", "expected"),
    [
        ({}, 0.909747, 3.310561),
        ({"direction": "gradient", "radius": 1e-5}, 1e-5, 4e-10),  # the paper's algorithm: ten orders smaller
        ({"radius": 0.5}, 0.454874, 0.827640),
    ],
)
def test_the_worked_case_in_one_dimension(settings, delta, expected, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "randn_like", torch.ones_like)  # a noise of 1e-5
    model, piece = Doubling(), Piece({"input_ids": torch.tensor([[1]]), "rows": torch.tensor([0])})
    seen: list[Tensor] = []
    model.embeddings.register_forward_hook(lambda *_: seen.append(torch.tensor(0)))
    term = term_of([model], squared_error, **settings)
    outputs = forward(model, piece)
    value = term(model, piece, outputs)
    assert value.item() == pytest.approx(expected, rel=1e-5 if expected > 1e-3 else 0.3)  # e + 1e-5 has fp32's rounding
    # f(e + delta) - f(e) = 2 delta: its square is the value, so delta is what the formula says.
    assert math.sqrt(expected) / 2 == pytest.approx(delta, rel=1e-5)
    assert len(seen) == 3
    assert term.measured() == {"smart_cosine": pytest.approx(1.0)}


@pytest.mark.parametrize("direction", ["reference", "gradient"])
def test_a_rows_perturbation_does_not_depend_on_the_rows_beside_it(direction: Any, encoder: PreTrainedModel) -> None:
    model = build(encoder, "full")
    with torch.no_grad():
        model.head.out.weight.mul_(100)  # so that the gradient counts beside the noise
    noise = 1e3 * torch.randn(4, 5, encoder.config.hidden_size, generator=torch.Generator().manual_seed(0))

    def perturbations(rows: Tensor) -> Tensor:
        """What stands in for the embeddings of ``rows`` in the last pass, less what does in the first."""
        seen: list[Tensor] = []
        term = smart(model, squared_error, direction=direction)
        piece = Piece({name: values[rows] for name, values in BATCH.items()})
        outputs = forward(model, piece)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch, "randn_like", lambda _: noise[rows])
            hook = model.backbone.encoder.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
            term(model, piece, outputs)
            hook.remove()
        return seen[1].detach() - seen[0].detach()

    whole = perturbations(torch.arange(4))
    pieces = [perturbations(torch.tensor([row])) for row in range(4)]
    read = BATCH["attention_mask"].bool()
    assert F.cosine_similarity(whole, torch.cat(pieces), dim=-1)[read].min() > 0.999


def test_the_gradients_direction_keeps_its_radius_however_small_it_is_and_spares_padding() -> None:
    gradient = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0))
    scales = torch.tensor([[1.0, 1e-9, 1e-30], [1.0, 1.0, 0.0]])
    delta = perturbation(torch.zeros_like(gradient), gradient * scales[..., None], "gradient", 0.5)
    assert delta.abs().amax(-1).flatten().tolist() == pytest.approx([0.5] * 5 + [0.0])
    torch.testing.assert_close(F.cosine_similarity(delta[0], gradient[0], dim=-1), torch.ones(3))


def build(encoder: PreTrainedModel, trainable: str, encoding: str = "cross", head: str = "linear") -> TransferModel:
    torch.manual_seed(0)
    if trainable != "full":
        encoder.requires_grad_(False)
    if trainable == "adapter":
        add_adapter(encoder, "films", "houlsby", 8)
    make_lean(encoder, "mean")
    outputs, vectors = (1, 1) if head == "cosine" else (2, 2 if encoding == "siamese" else 1)
    module = build_head(head, encoder.config.hidden_size, outputs, vectors, 0.0)
    return TransferModel(encoder, module, encoding, "mean").eval()


def smart(model: TransferModel, divergence: Callable[..., Tensor] = class_divergence, **settings: Any) -> Smoothness:
    return term_of(model.encoders, divergence, **settings)


@pytest.mark.parametrize("trainable", ["full", "adapter", "head"])
def test_it_costs_one_forward_and_one_forward_backward_pass_more_than_a_plain_step(trainable, encoder) -> None:
    model = build(encoder, trainable)
    passes = Counter[str]()
    top = model.backbone.encoder.layer[-1]
    top.register_forward_hook(lambda *_: passes.update(["forward"]))
    top.register_full_backward_hook(lambda *_: passes.update(["backward"]))
    piece = Piece(BATCH)
    outputs = forward(model, piece)
    (F.cross_entropy(outputs, BATCH["labels"]) + smart(model)(model, piece, outputs)).backward()
    # What trains goes backward from the clean and the perturbed outputs; where nothing in the backbone does, ascent
    # alone goes through it.
    assert passes == {"forward": 3, "backward": 1 if trainable == "head" else 3}


@pytest.mark.covering(1)
@pytest.mark.parametrize(
    ("trainable", "encoding", "head"),
    [
        (trainable, encoding, head)
        for trainable in ("full", "adapter", "head")
        for encoding, head in (("cross", "linear"), ("siamese", "difference"), ("siamese", "cosine"))
        if (trainable, head) != ("head", "cosine")  # has no weights
    ],
)
@pytest.mark.parametrize("direction", ["reference", "gradient"])
def test_it_is_the_divergence_under_its_perturbation_and_trains_what_trains(
    trainable, encoding, head, direction, encoder
) -> None:
    model = build(encoder, trainable, encoding, head)
    divergence = squared_error if head == "cosine" else class_divergence
    piece = Piece(BATCH)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    hooks = len(model.backbone.embeddings._forward_hooks)
    plain = forward(model, piece)
    torch.manual_seed(3)
    term = smart(model, divergence, weight=2.0, direction=direction)
    value = term(model, piece, plain)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    gradients = torch.autograd.grad(value, trained, retain_graph=True)

    torch.manual_seed(3)
    states = model.backbone.embeddings(BATCH["input_ids"], BATCH["token_type_ids"]).detach()
    start = (1e-5 * torch.randn_like(states)).requires_grad_()
    with perturbed(model.backbone.embeddings, start):
        ascent = len(piece) * divergence(forward(model, piece), plain.detach())
    (gradient,) = torch.autograd.grad(ascent, start)
    delta = perturbation(start.detach(), gradient, direction)
    with perturbed(model.backbone.embeddings, delta):
        expected = divergence(forward(model, piece), plain)
    assert value.item() == pytest.approx(2 * expected.item(), rel=1e-5)
    assert value.item() > 0
    # Through both the clean and the perturbed outputs: no other term has these gradients.
    expected_gradients = torch.autograd.grad(2 * expected, trained)
    assert any(gradient.abs().max() > 1e-7 for gradient in expected_gradients)
    torch.testing.assert_close(gradients, expected_gradients, rtol=1e-3, atol=1e-7)
    cosines = F.cosine_similarity(start.detach(), delta, dim=-1)
    assert term.measured()["smart_cosine"] == pytest.approx(cosines[BATCH["attention_mask"].bool()].mean().item())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert len(model.backbone.embeddings._forward_hooks) == hooks


def test_of_two_encoders_both_are_perturbed_each_by_its_own_gradient(encoder: PreTrainedModel) -> None:
    torch.manual_seed(0)
    second = copy.deepcopy(encoder).requires_grad_(False)  # static: only ascent goes through it
    model = TransferModel(encoder, build_head("linear", 2 * encoder.config.hidden_size, 2, 1, 0.0), "cross", "mean")
    model.second["backbone"] = second
    model.eval()
    piece, plain = Piece(BATCH), forward(model, Piece(BATCH))
    torch.manual_seed(3)
    term = smart(model, direction="gradient", radius=0.05)
    value = term(model, piece, plain)

    torch.manual_seed(3)
    embeddings = [each.embeddings for each in model.encoders]
    states = embeddings[0](BATCH["input_ids"], BATCH["token_type_ids"]).detach()
    first, other = ((1e-5 * torch.randn_like(states)).requires_grad_() for _ in range(2))
    with perturbed(embeddings[0], first), perturbed(embeddings[1], other):
        ascent = len(piece) * class_divergence(forward(model, piece), plain.detach())
    deltas = [
        perturbation(start.detach(), gradient, "gradient", 0.05)
        for start, gradient in zip((first, other), torch.autograd.grad(ascent, (first, other)), strict=True)
    ]
    with perturbed(embeddings[0], deltas[0]), perturbed(embeddings[1], deltas[1]):
        expected = class_divergence(forward(model, piece), plain)
    assert value.item() == pytest.approx(expected.item(), rel=1e-5)
    with perturbed(embeddings[0], deltas[0]):
        alone = class_divergence(forward(model, piece), plain)
    assert value.item() > 1.5 * alone.item()  # more than the first encoder's part of it
    value.backward()
    assert all(parameter.grad is None for parameter in second.parameters())


def test_the_perturbation_is_in_fp32_where_the_model_computes_in_bf16(encoder) -> None:
    model = build(encoder, "full")
    seen: list[Tensor] = []
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with perturbed(model.backbone.embeddings, torch.tensor(1e-5)) as added:
            model.backbone.embeddings.register_forward_hook(lambda _, __, output: seen.append(output))
            outputs = forward(model, Piece(BATCH))
        forward(model, Piece(BATCH))
        value = smart(model)(model, Piece(BATCH), outputs)
    assert added[0].dtype == seen[0].dtype == torch.float32
    assert (seen[0] - seen[1]).abs().amax().item() == pytest.approx(1e-5, rel=0.1)
    assert torch.isfinite(value)


def test_the_cosine_says_what_of_the_direction_is_noise(encoder) -> None:
    model, piece = build(encoder, "adapter"), Piece(BATCH)
    outputs = forward(model, piece)
    cosines = {}
    for direction in ("reference", "gradient"):
        term, once = smart(model, direction=direction), smart(model, direction=direction)
        term.start({})
        assert term.measured() == {"smart_cosine": None}
        each = []
        for step in range(3):
            for one in (term, once):
                torch.manual_seed(step)
                one(model, piece, outputs)
            each.append(once.measured()["smart_cosine"])
        kept = term.state()
        cosines[direction] = term.measured()["smart_cosine"]
        assert isinstance(cosines[direction], float)
        assert cosines[direction] == pytest.approx(sum(each) / 3)
        assert term.measured() == {"smart_cosine": None}
        term.start(kept)
        assert term.measured() == {"smart_cosine": cosines[direction]}
    assert cosines["reference"] == pytest.approx(1.0, abs=1e-4)
    assert abs(cosines["gradient"]) < 0.9


def test_a_model_whose_embeddings_do_not_run_is_an_error(encoder) -> None:
    """As with states from the cache: there is nothing to perturb, and the term would be nothing without a word."""
    model = build(encoder, "head")
    known = {**BATCH, "known": torch.randn(4, 32)}
    with pytest.raises(RuntimeError, match="did not run its embeddings"):
        smart(model)(model, Piece(known), forward(model, Piece(known)))


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
    """Each target is held fixed; differentiating those too would give (.2208, .6002, -.8210)."""
    for_z, for_y = gradients(Z, Y)
    assert for_z[0].tolist() == pytest.approx([0.1547, 0.4205, -0.5752], abs=1e-4)
    torch.testing.assert_close(for_y, -for_z)


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
def test_it_is_a_batch_mean_that_is_symmetric_and_zero_where_outputs_agree(divergence, width) -> None:
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
def test_the_kind_of_output_decides(task, head, expected) -> None:
    assert objective_of(find_task(task), Recipe(head=head)).divergence is expected
