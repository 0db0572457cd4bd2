"""The fast fusion is AdapterHub's fusion: outputs, gradients and attention, at every site and in every form."""

from collections.abc import Sequence
from typing import Any

import adapters
import pytest
import torch
from adapters.composition import Fuse
from torch import Tensor, nn
from transformers import BertConfig, BertModel

from benchmarks.flops import flop_of
from pipeline.methods import fast_fusion
from pipeline.methods.fast_fusion import FusionSite, _Mix, cheapest_forms
from pipeline.methods.registry import use_fusion_implementation
from tests.pipeline.methods.adapted import uneven_sum, with_gradients

FORMS = [(query, value) for query in ("folded", "half", "plain") for value in ("folded", "plain")]


def fused_model(
    bottlenecks: Sequence[int] = (8, 4, 6),
    width: int = 24,
    sites: str = "houlsby",
    dropout: float = 0.1,
    activation: str = "gelu",
    dtype: torch.dtype = torch.float64,
    **changed: bool,
) -> Any:
    """A two-layer BERT with random adapters and a random fusion over them, in training."""
    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=width,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=2 * width,
        vocab_size=50,
        attention_probs_dropout_prob=dropout,
        hidden_dropout_prob=dropout,
    )
    model = BertModel(config, add_pooling_layer=False)
    adapters.init(model)
    kind = adapters.DoubleSeqBnConfig if sites == "houlsby" else adapters.SeqBnConfig
    names = [f"task{n}" for n in range(len(bottlenecks))]
    for name, bottleneck in zip(names, bottlenecks, strict=True):
        model.add_adapter(name, config=kind(reduction_factor=width / bottleneck, non_linearity=activation))
    model.add_adapter_fusion(Fuse(*names), config=adapters.DynamicAdapterFusionConfig(**changed))
    model.train_adapter_fusion(Fuse(*names))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "adapter" in name:
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model.to(dtype).train()


def batch() -> dict[str, Tensor]:
    torch.manual_seed(3)
    mask = torch.ones(3, 7, dtype=torch.long)
    mask[1, 4:] = 0
    return {"input_ids": torch.randint(0, 50, (3, 7)), "attention_mask": mask}


def predicted(model: Any) -> Tensor:
    model.eval()
    with torch.inference_mode():
        return model(**batch()).last_hidden_state


def outputs_and_gradients(model: Any, implementation: Any) -> tuple[Tensor, dict[str, Tensor]]:
    use_fusion_implementation(model, implementation)
    return with_gradients(model, lambda: model(**batch()).last_hidden_state)


def assert_same(model: Any, tolerance: float = 1e-10) -> None:
    expected, expected_gradients = outputs_and_gradients(model, "stock")
    found, gradients = outputs_and_gradients(model, "fast")
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance)
    assert gradients.keys() == expected_gradients.keys()
    assert sum(gradient.abs().max() > 1e-3 for gradient in gradients.values()) >= 4
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, expected_gradients[name], rtol=0, atol=tolerance, msg=name)


@pytest.fixture
def count_fast(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often the fast form ran, so that a test cannot pass by falling back to stock."""
    calls: list[int] = []
    fuse = FusionSite._fuse

    def counting(self: FusionSite, *arguments: Any) -> Any:
        calls.append(1)
        return fuse(self, *arguments)

    monkeypatch.setattr(FusionSite, "_fuse", counting)
    return calls


@pytest.mark.parametrize("sites", ["houlsby", "pfeiffer"])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("bottlenecks", [(4, 4), (8, 4, 6), (1, 24), (3,) * 9])
def test_equals_stock(bottlenecks: tuple[int, ...], dropout: float, sites: str, count_fast: list[int]) -> None:
    assert_same(fused_model(bottlenecks, sites=sites, dropout=dropout))
    assert len(count_fast) == (4 if sites == "houlsby" else 2)


@pytest.mark.parametrize("width", [8, 24, 48])
@pytest.mark.parametrize("activation", ["gelu", "relu", "swish", "tanh"])
def test_equals_stock_for_any_width_and_activation(width: int, activation: str, count_fast: list[int]) -> None:
    assert_same(fused_model((4, 2, 3), width=width, activation=activation))
    assert count_fast


@pytest.mark.parametrize("forms", FORMS)
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_every_form_equals_stock(
    forms: tuple[str, str], dropout: float, monkeypatch: pytest.MonkeyPatch, count_fast: list[int]
) -> None:
    monkeypatch.setattr(fast_fusion, "cheapest_forms", lambda *_: forms)
    assert_same(fused_model(dropout=dropout))
    assert count_fast


@pytest.mark.parametrize("cached", [1, 50, 131])
def test_blocks_of_any_size_give_the_same(cached: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast_fusion, "_CACHED", cached)
    assert_same(fused_model())


def test_equals_stock_in_fp32() -> None:
    assert_same(fused_model(dtype=torch.float32), tolerance=2e-5)


def test_bf16_autocast_is_as_near_to_fp64_as_stock() -> None:
    exact, _ = outputs_and_gradients(fused_model(dropout=0.0), "stock")
    model = fused_model(dropout=0.0, dtype=torch.float32)
    errors = {}
    for implementation in ("stock", "fast"):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            hidden, _ = outputs_and_gradients(model, implementation)
        errors[implementation] = (hidden.double() - exact).abs().mean().item()
    assert errors["fast"] < 1.2 * errors["stock"]


def test_the_mix_has_the_gradients_of_its_function() -> None:
    torch.manual_seed(0)
    size, m, tail = 3, 2, 8
    inner = torch.randn(2, 4, size * m, dtype=torch.float64, requires_grad=True)
    cross = torch.randn(2, 4, size * m + tail, dtype=torch.float64, requires_grad=True)
    shift = torch.randn(2, 4, 1, dtype=torch.float64, requires_grad=True)
    factor = torch.rand(2, 4, size, dtype=torch.float64)
    assert torch.autograd.gradcheck(
        lambda *inputs: _Mix.apply(*inputs, factor, nn.functional.gelu, size)[0], (inner, cross, shift)
    )


def test_attention_is_that_of_stock_also_in_bf16() -> None:
    model = fused_model(dtype=torch.float32).eval()
    found = {}
    for implementation, autocast in (("stock", False), ("fast", False), ("fast", True)):
        use_fusion_implementation(model, implementation)
        with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            attentions = model(**batch(), output_adapter_fusion_attentions=True).adapter_fusion_attentions
        (by_layer,) = attentions.values()
        found[implementation, autocast] = torch.from_numpy(by_layer[1]["output_adapter"])
    torch.testing.assert_close(found["fast", False], found["stock", False], rtol=0, atol=1e-6)
    torch.testing.assert_close(found["fast", True], found["stock", False], rtol=0, atol=0.05)


def test_prediction_follows_a_change_of_the_weights() -> None:
    model = fused_model()
    use_fusion_implementation(model, "fast")
    before = predicted(model)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "adapter_fusion_layer" in name:
                parameter.add_(0.1 * torch.randn_like(parameter))  # a constant would vanish in the LayerNorm
    after = predicted(model)  # through the sites that hold folded weights of before
    assert (before - after).abs().max() > 1e-2
    use_fusion_implementation(model, "stock")
    torch.testing.assert_close(after, predicted(model), rtol=0, atol=1e-12)


def test_prediction_between_training_steps_follows_the_optimiser() -> None:
    """A fused step changes parameters without raising their version."""
    model = fused_model(dropout=0.0)
    use_fusion_implementation(model, "fast")
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2, fused=True)
    before = predicted(model)
    for _ in range(2):
        uneven_sum(model.train()(**batch()).last_hidden_state).backward()
        optimizer.step()
        after = predicted(model)
        assert (after - before).abs().max() > 1e-3
        before = after
    use_fusion_implementation(model, "stock")
    torch.testing.assert_close(after, predicted(model), rtol=0, atol=1e-10)


def moved(parameter: nn.Parameter) -> Tensor:
    return parameter.detach() + 0.2 * torch.randn_like(parameter)


@pytest.mark.parametrize(
    "part", ["adapter_down.0.weight", "adapter_down.0.bias", "adapter_up.weight", "adapter_up.bias"]
)
@pytest.mark.parametrize("change", ["its data", "in place", "another parameter", "a fused step"])
def test_prediction_follows_a_change_of_the_adapters(part: str, change: str) -> None:
    """Under a fusion that stays as it is."""
    model = fused_model(dropout=0.0)
    use_fusion_implementation(model, "fast")
    before = predicted(model)
    own = {name: each for name, each in model.named_parameters() if ".adapters." in name and name.endswith(part)}
    assert len(own) == 4 * 3
    if change == "a fused step":  # in the stock form; it raises no version
        for parameter in own.values():
            parameter.requires_grad_(True)
        (model(**batch()).last_hidden_state ** 3).sum().backward()
        torch.optim.AdamW(own.values(), lr=0.1, fused=True).step()
        model.requires_grad_(False)
    for name, parameter in own.items():
        module, _, kind = name.rpartition(".")
        if change == "its data":
            parameter.data = moved(parameter)
        elif change == "in place":
            with torch.no_grad():
                parameter.copy_(moved(parameter))
        elif change == "another parameter":
            setattr(model.get_submodule(module), kind, nn.Parameter(moved(parameter), requires_grad=False))
    after = predicted(model)
    assert (before - after).abs().max() > 1e-3
    use_fusion_implementation(model, "stock")
    torch.testing.assert_close(after, predicted(model), rtol=0, atol=1e-12)


def test_a_moved_model_is_joined_again() -> None:
    model = fused_model(dtype=torch.float32)
    use_fusion_implementation(model, "fast")
    model(**batch())
    model.double()
    assert_same(model)


def test_weights_are_held_once() -> None:
    model = fused_model((4, 4, 4))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    use_fusion_implementation(model, "fast")
    model(**batch())
    after = model.state_dict()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    bank = vars(model.encoder.layer[0].output)["compose_fuse"]._bank
    owned = {bank.down.data_ptr(), bank.up.data_ptr(), bank.bias.data_ptr()}
    first = model.encoder.layer[0].output.adapters["task0"]
    assert {p.untyped_storage().data_ptr() for p in first.parameters()} == owned


def test_adapters_that_train_go_to_stock(count_fast: list[int]) -> None:
    model = fused_model()
    for site in (model.encoder.layer[0].output, model.encoder.layer[1].attention.output):
        site.adapters["task1"].requires_grad_(True)
    assert_same(model)
    assert len(count_fast) == 2


@pytest.mark.parametrize("rank", [64, 40])
def test_the_chosen_forms_take_the_fewest_operations(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted as they run, forward and backward; the estimate leaves out what fills a bank up to its alignment."""
    model = fused_model((32,) * 3, width=64, sites="pfeiffer", dropout=0.0)
    layer = model.encoder.layer[0].output
    site, (fusion,) = FusionSite(layer, layer.compose_fuse), layer.adapter_fusion_layer.values()
    fusion.query, fusion.key = (nn.Linear(64, rank, dtype=torch.float64) for _ in range(2))
    bank = site._join(list(layer.adapters))

    def taken(tokens: int) -> int:
        states = torch.randn(1, tokens, 64, dtype=torch.float64, requires_grad=True)
        return flop_of(lambda: site._fuse(fusion, bank, states, states)[0].sum().backward())

    lines = {}
    for forms in FORMS:
        monkeypatch.setattr(fast_fusion, "cheapest_forms", lambda *_, forms=forms: forms)
        once, twice = taken(4), taken(8)
        lines[forms] = 2 * once - twice, (twice - once) / 4  # weights are multiplied once, and states for each token
    for tokens in range(2, 400, 2):
        costs = {forms: fixed + per_token * tokens for forms, (fixed, per_token) in lines.items()}
        assert costs[cheapest_forms(tokens, bank, rank)] < 1.03 * min(costs.values())


def test_attention_has_no_gradient_and_no_gradient_has_one() -> None:
    """Neither is written; autograd refuses them where it would otherwise give wrong ones."""
    inner, cross = (torch.randn(4, units, requires_grad=True) for units in (6, 16))
    mix, attention = _Mix.apply(inner, cross, None, None, nn.functional.gelu, 3)
    assert not attention.requires_grad
    (gradient,) = torch.autograd.grad(mix.square().sum(), inner, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        gradient.sum().backward()
