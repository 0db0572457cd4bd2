"""A lean encoder is the encoder: same outputs and gradients without dropout, the same law of dropout with it."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from pipeline.models.backbone import open_backbone
from pipeline.models.lean import Dropout, _attend, dropout, make_lean
from tests.nano import FAMILIES, save_backbone
from tests.pipeline.methods.adapted import add_adapter, uneven_sum

LEAN = ("bert", "roberta", "electra")


def encoder(folder: Path, family: str, adapted: bool = False, dropout: float = 0.0) -> Any:
    backbone = open_backbone(str(save_backbone(folder / family, family=family)))
    torch.manual_seed(0)
    model = backbone.load()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = dropout
        if hasattr(module, "dropout_prob"):  # what transformers' own attention reads
            module.dropout_prob = dropout
    if adapted:
        model.requires_grad_(False)
        add_adapter(model, "sst", "houlsby", 4)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "adapter" in name:
                    parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def batch() -> dict[str, Tensor]:
    torch.manual_seed(2)
    mask = torch.ones(3, 9, dtype=torch.long)
    mask[1, 5:] = 0
    return {"input_ids": torch.randint(5, 20, (3, 9)), "attention_mask": mask}


@pytest.mark.covering(1)
@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("adapted", [True, False])
@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_function(tmp_path: Path, family: str, pooling: Any, adapted: bool, padded: bool) -> None:
    inputs = batch()
    if not padded:
        inputs["attention_mask"][:] = 1
    found = []
    for lean in (False, True):
        model = encoder(tmp_path, family, adapted)
        if lean:
            make_lean(model, pooling)
        hidden = model(**inputs).last_hidden_state
        read = hidden[:, 0] if pooling == "cls" else hidden
        uneven_sum(read).backward()
        found.append((read.detach(), {n: p.grad for n, p in model.named_parameters() if p.requires_grad}, hidden.shape))
    (expected, expected_gradients, _), (read, gradients, shape) = found
    torch.testing.assert_close(read, expected, rtol=0, atol=2e-6)
    for name, gradient in expected_gradients.items():
        if gradient is None:
            assert gradients[name] is None
        else:
            torch.testing.assert_close(gradients[name], gradient, rtol=1e-4, atol=2e-5, msg=name)
    assert shape[1] == (1 if pooling == "cls" and family in LEAN else 9)


@pytest.mark.parametrize("family", FAMILIES)
def test_no_parameter_changes_its_name(tmp_path: Path, family: str) -> None:
    model = encoder(tmp_path, family, adapted=True)
    names = list(model.state_dict())
    make_lean(model, "cls")
    make_lean(model, "cls")
    assert list(model.state_dict()) == names


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_a_mask_of_fewer_rows_is_that_of_each_encoding_in_turn(tmp_path: Path, family: str) -> None:
    """Two encodings in one pass: adapters in parallel put all rows of the second behind those of the first."""
    model = encoder(tmp_path, family, adapted=True).eval()
    attention = model.encoder.layer[0].attention.self
    states = torch.randn(6, 9, 32)
    mask = torch.zeros(3, 1, 9, 9).masked_fill(batch()["attention_mask"][:, None, None] == 0, -torch.inf)
    expected = attention(states, mask)[0]
    make_lean(model, "mean")
    torch.testing.assert_close(attention(states, mask)[0], expected, rtol=0, atol=2e-6)


def test_dropout_reaches_attention_and_hidden_states_in_training_alone(tmp_path: Path) -> None:
    model = encoder(tmp_path, "bert", dropout=0.5)
    make_lean(model, "mean")
    inputs = batch()
    first, second = (model.train()(**inputs).last_hidden_state for _ in range(2))
    assert not torch.equal(first, second)
    first, second = (model.eval()(**inputs).last_hidden_state for _ in range(2))
    assert torch.equal(first, second)
    for module in model.modules():
        if isinstance(module, Dropout):
            module.p = 0.0
    model.encoder.layer[0].attention.self.dropout.p = 0.5
    first, second = (model.train()(**inputs).last_hidden_state for _ in range(2))
    assert not torch.equal(first, second)


def test_dropout_of_a_number_of_values_that_fills_no_word() -> None:
    assert [dropout(torch.ones(count), 0.5, True).shape for count in (1, 3, 5)] == [(1,), (3,), (5,)]
    assert dropout(torch.ones(0, 3), 0.5, True).shape == (0, 3)


def test_dropout_keeps_a_byte_a_number() -> None:
    values, saved = torch.randn(50, 20, requires_grad=True), []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: saved.append(tensor.nbytes), lambda _: None):
        dropout(values, 0.3, True)
    assert sum(saved) == values.numel()


@pytest.mark.parametrize("probability", [0.0, 1.0])
def test_dropout_of_nothing_and_of_all(probability: float) -> None:
    values = torch.randn(5, 3)
    assert torch.equal(dropout(values, probability, True), values * (1 - probability))
    assert torch.equal(dropout(values, probability, False), values)


def test_dropout_follows_the_seed_and_its_gradient_its_mask() -> None:
    values = torch.randn(7, 11, requires_grad=True)
    masks = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        values.grad = None
        dropped = dropout(values, 0.3, True)
        dropped.sum().backward()
        torch.testing.assert_close(dropped, values * values.grad)
        masks.append(values.grad)
    assert torch.equal(masks[0], masks[1])
    assert not torch.equal(masks[0], masks[2])


@pytest.mark.parametrize("probability", [0.0, 0.3])
def test_a_gpu_is_asked_for_dropout_in_attention(probability: float, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def attend(query: Tensor, key: Tensor, value: Tensor, **settings: Any) -> Tensor:
        asked.append(settings)
        return query

    monkeypatch.setattr(functional, "scaled_dot_product_attention", attend)
    states, mask = torch.empty(2, 2, 5, 8, device="meta"), torch.empty(2, 1, 1, 5, device="meta")
    _attend(states, states, states, mask, probability)
    assert asked == [{"attn_mask": mask, "dropout_p": probability}]
