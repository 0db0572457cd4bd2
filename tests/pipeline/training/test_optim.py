"""Each trained parameter is in exactly one group, of its own rate, and each frozen one in none; how rates go."""

import pytest
import torch
from torch import nn

from pipeline.models.transfer_model import TransferModel, build_head
from pipeline.settings.recipe import Recipe
from pipeline.training.optim import OPTIMIZERS, parameter_groups, peak_rates, rate_factor


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
        for group in parameter_groups(model, dict.fromkeys(known.values(), 1e-3), 0.01, **options)
    ]


def test_named_matrices_are_spared_from_decay() -> None:
    (_, decayed), (_, free) = names(Model(), without_decay={"value.weight"})
    assert "value.weight" in free - decayed


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
    assert [rate_factor("linear", step, total, warmup) for step in range(total)] == pytest.approx(expected)


@pytest.mark.parametrize("total", [1, 2, 7, 100, 1001])
@pytest.mark.parametrize("warmup", [0.0, 0.05, 0.1, 0.5, 1.0])
def test_noam_peaks_where_linear_does_and_never_ends(total: int, warmup: float) -> None:
    factors = [rate_factor("noam", step, total, warmup) for step in range(total)]
    peak = max(1, round(total * warmup)) - 1
    assert factors[peak] == max(factors) == 1
    assert min(factors) > 0
    linear = [rate_factor("linear", step, total, warmup) for step in range(peak + 1)]
    assert factors[: peak + 1] == pytest.approx(linear)
    assert factors[peak:] == sorted(factors[peak:], reverse=True)


class Encoder(nn.Module):
    """What counts of an encoder is what its parameters are called."""

    def __init__(self, depth: int = 12) -> None:
        super().__init__()
        self.embeddings = nn.ModuleDict({"word_embeddings": nn.Embedding(7, 4), "LayerNorm": nn.LayerNorm(4)})
        layers = [nn.ModuleDict({"output": nn.Linear(4, 4), "adapters": nn.Linear(4, 2)}) for _ in range(depth)]
        self.encoder = nn.ModuleDict({"layer": nn.ModuleList(layers)})
        self.pooler = nn.Linear(4, 4)


OWN = [name for name, _ in Encoder().named_parameters() if ".adapters." not in name]


def recipe(**values: object) -> Recipe:
    return Recipe.model_validate({"trainable": "full", "learning_rate": 1e-5} | values)


def transfer_model() -> TransferModel:
    return TransferModel(Encoder(), build_head("linear", 4, 2, 1, 0.0), "cross", "mean")


def test_layers_learn_the_slower_the_lower_they_are() -> None:
    """Layer 0 of 12 at 5.688e-6, layer 10 at 9.5e-6, as Hayes has it; embeddings at 5.404e-6, as Sun et al. have it."""
    rates = peak_rates(transfer_model(), recipe(layer_decay=0.95))
    for layer in range(12):
        own = [rate for name, rate in rates.items() if f".layer.{layer}." in name]
        assert own == pytest.approx([1e-5 * 0.95 ** (11 - layer)] * 4)
    assert rates["backbone.encoder.layer.0.output.weight"] == pytest.approx(5.688e-6, abs=5e-10)
    assert rates["backbone.encoder.layer.10.output.bias"] == pytest.approx(9.5e-6)
    embeddings = [rate for name, rate in rates.items() if ".embeddings." in name]
    assert embeddings == pytest.approx([5.404e-6] * 3, abs=5e-10)
    assert {rate for name, rate in rates.items() if "pooler" in name or "head" in name} == {1e-5}


@pytest.mark.parametrize("frozen", [[], ["embeddings"], ["encoder", "pooler"]])
def test_each_trained_parameter_is_in_exactly_one_group_of_its_rate(frozen: list[str]) -> None:
    model = transfer_model()
    for name in frozen:
        model.backbone.get_submodule(name).requires_grad_(False)
    rates = peak_rates(model, recipe(layer_decay=0.9, head_learning_rate=1e-3), OWN)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    grouped = [
        (names[id(parameter)], group["initial_lr"], group["weight_decay"])
        for group in parameter_groups(model, rates, 0.01)
        for parameter in group["params"]
    ]
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert sorted(name for name, _, _ in grouped) == sorted(trained) == sorted(rates)
    for name, rate, decay in grouped:
        assert (rate, decay) == (rates[name], 0.01 if trained[name].ndim > 1 else 0.0)


def test_equal_rates_make_the_groups_that_there_would_be_without() -> None:
    model = transfer_model()
    rates = peak_rates(model, recipe())
    assert set(rates.values()) == {1e-5}
    assert len(parameter_groups(model, rates, 0.01)) == 2  # with and without decay


def test_a_task_called_head_is_not_a_head() -> None:
    model = transfer_model()
    model.backbone.adapters = nn.ModuleDict({"head": nn.Linear(4, 2)})
    rates = peak_rates(model, recipe(learning_rate=3e-4, head_learning_rate=1e-3), OWN)
    assert rates["backbone.adapters.head.weight"] == 3e-4


def test_the_courses_adamw_is_its_equation_and_resumes() -> None:
    beta1, beta2, epsilon, rates = 0.8, 0.95, 1e-2, [0.1, 0.2, 0.05, 0.3]
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(4, 3, generator=generator, dtype=torch.float64)
    gradients = [torch.randn(4, 3, generator=generator, dtype=torch.float64) for _ in rates]
    theta, mean, square = start.clone(), torch.zeros_like(start), torch.zeros_like(start)
    weights, unused = nn.Parameter(start.clone()), nn.Parameter(torch.ones(2, dtype=torch.float64))

    def optimizer() -> torch.optim.AdamW:
        groups = [{"params": [unused, weights], "weight_decay": 0.1}]
        return OPTIMIZERS["step"](groups, betas=(beta1, beta2), eps=epsilon, fused=True)

    running = optimizer()
    for step, (gradient, rate) in enumerate(zip(gradients, rates, strict=True), 1):
        mean = beta1 * mean + (1 - beta1) * gradient
        square = beta2 * square + (1 - beta2) * gradient**2
        size = rate * (1 - beta2**step) ** 0.5 / (1 - beta1**step)
        theta = (1 - rate * 0.1) * (theta - size * mean / (square.sqrt() + epsilon))
        if step == 3:  # another process goes on
            kept, running = running.state_dict(), optimizer()
            running.load_state_dict(kept)
        weights.grad = gradient.clone()
        running.param_groups[0]["lr"] = rate
        running.step()
        torch.testing.assert_close(weights.detach(), theta, rtol=0, atol=1e-12)
        assert running.param_groups[0]["weight_decay"] == 0.1
    assert unused.tolist() == [1.0, 1.0]


def test_the_courses_adamw_counts_each_parameters_own_steps() -> None:
    """In joint training the head of a task rests while others train."""
    resting, alone, busy = (nn.Parameter(torch.zeros(3)) for _ in range(3))
    together, own = (
        OPTIMIZERS["step"](group, lr=1e-3, betas=(0.9, 0.999), eps=1e-6) for group in ([resting, busy], [alone])
    )
    for step in range(200):
        busy.grad = torch.full((3,), 1e-6)
        resting.grad = alone.grad = torch.full((3,), 1e-6) if step % 40 == 0 else None
        together.step()
        if alone.grad is not None:
            own.step()
    assert torch.equal(resting, alone)
    assert alone.abs().min() > 0


def test_the_courses_adamw_does_not_decay_where_fp16_overflows() -> None:
    weight = nn.Parameter(torch.ones(2))
    optimizer = OPTIMIZERS["step"]([weight], lr=0.1, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.5, fused=True)
    weight.grad = torch.full((2,), float("inf"))
    optimizer.grad_scale, optimizer.found_inf = torch.tensor(1.0), torch.tensor(1.0)
    optimizer.step()
    assert weight.tolist() == [1.0, 1.0]
