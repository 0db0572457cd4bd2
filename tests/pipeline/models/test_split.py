"""Split models: what is shared and what is not, and one pass through what is shared; two encoders side by side."""

import pytest
import torch
from torch import Tensor, nn
from transformers import BertConfig, BertModel, PreTrainedModel

from pipeline.models.layout import layers_of, split_encoder
from pipeline.models.lean import make_lean
from pipeline.models.transfer_model import JointModel, MultitaskModel, TransferModel, build_head
from pipeline.system.errors import PipelineError
from tests.pipeline.methods.adapted import IDS, hidden

TASKS = ("a", "b", "c")


def models(encoder: PreTrainedModel, top: int, pooling: str = "mean") -> dict[str, TransferModel]:
    made = {}
    for task, own in zip(TASKS, split_encoder(encoder, top, len(TASKS)), strict=True):
        make_lean(own, pooling)
        head = build_head("linear", width=encoder.config.hidden_size, outputs=2, vectors=1, dropout=0.0)
        made[task] = TransferModel(own, head, "cross", pooling)
    return made


def state(module: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


@pytest.mark.parametrize("top", [0, 1, 2])
def test_at_the_start_every_task_is_the_plain_model(top: int, encoder: PreTrainedModel) -> None:
    expected = hidden(encoder)
    for own in split_encoder(encoder, top, 3):
        assert torch.equal(hidden(own), expected)


@pytest.mark.parametrize("top", [0, 1, 2])
def test_a_step_of_one_task_moves_what_is_shared_and_no_other_tasks_own_layers(
    top: int, encoder: PreTrainedModel
) -> None:
    made = models(encoder, top)
    depth = len(layers_of(encoder))
    before = {task: state(model.backbone) for task, model in made.items()}
    joint = MultitaskModel(made).train()
    optimizer = torch.optim.AdamW(joint.parameters(), lr=1e-2, weight_decay=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        joint("a", input_ids=IDS, attention_mask=torch.ones_like(IDS)).square().sum().backward()
        optimizer.step()
    for task, model in made.items():
        moved = {name for name, tensor in state(model.backbone).items() if not torch.equal(tensor, before[task][name])}
        own = {name for name in before[task] for layer in range(depth - top, depth) if f"layer.{layer}." in name}
        assert any("embeddings" in name for name in moved)
        assert any("layer.0." in name for name in moved) == (task == "a" or top < depth)
        assert bool(moved & own) == (task == "a" and top > 0)


@pytest.mark.parametrize(("top", "millions"), [(0, 109.48), (2, 137.8), (3, 152.0), (4, 166.2), (6, 194.5)])
def test_parameters_are_berts_and_the_copied_layers(top: int, millions: float) -> None:
    """Hayes 2024: 109.48 M and 2 k times 7.088 M for three tasks; the pooler, which is not copied, is not used here."""
    with torch.device("meta"):
        encoder = BertModel(BertConfig(), add_pooling_layer=True)
    each = nn.ModuleList(split_encoder(encoder, top, 3))
    found = sum(parameter.numel() for parameter in each.parameters())
    assert found == 109_482_240 + 2 * top * 7_087_872
    assert round(found / 1e6, 1) == round(millions, 1)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("top", [0, 1, 2])
def test_one_pass_through_the_shared_layers_serves_all(top: int, pooling: str, encoder: PreTrainedModel) -> None:
    made = models(encoder, top, pooling)
    for seed, model in enumerate(made.values()):
        torch.manual_seed(seed)
        for parameter in model.backbone.parameters():
            parameter.data += 0.05 * torch.randn_like(parameter)
        model.eval()
    mask = torch.ones_like(IDS)
    mask[1, 5:] = 0
    ran = []
    layers_of(encoder)[0].register_forward_hook(lambda *_: ran.append(1))
    with torch.no_grad():
        found = JointModel(list(made.values()), top)(input_ids=IDS, attention_mask=mask)
        assert len(ran) == 1
        expected = torch.cat([model(input_ids=IDS, attention_mask=mask) for model in made.values()], dim=-1)
    assert torch.allclose(found, expected, atol=1e-6)


def test_more_layers_than_there_are_cannot_be_split(encoder: PreTrainedModel) -> None:
    with pytest.raises(PipelineError, match=r"split_layers 99: the backbone has \d layers"):
        split_encoder(encoder, 99, 2)


def test_a_static_encoder_beside_the_tuned_one_stays_as_it_is(encoder: PreTrainedModel, backbone) -> None:
    static = backbone.load()
    static.requires_grad_(False)
    width = encoder.config.hidden_size
    head = build_head("linear", width=2 * width, outputs=2, vectors=1, dropout=0.0)
    model = TransferModel(encoder, head, "cross", "mean", second=static).train()
    assert encoder.training
    assert not static.training
    inputs = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}
    vectors = model.encode(**inputs)
    assert vectors.shape == (len(IDS), 2 * width)
    assert torch.equal(vectors[:, width:], model.encode(**inputs)[:, width:])  # no dropout in it
    model(**inputs).square().sum().backward()
    assert all(parameter.grad is None for parameter in static.parameters())
    assert any(parameter.grad is not None for parameter in encoder.parameters())
