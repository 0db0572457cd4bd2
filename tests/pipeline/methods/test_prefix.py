"""Prefixes do what vectors in front of each layer's input do, and are different vectors that stay different."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from pipeline.methods.prefix import PREFIX, token_states
from pipeline.models.backbone import Backbone
from pipeline.models.layout import activate
from pipeline.settings.recipe import Recipe
from tests.pipeline.methods.adapted import IDS, MASK, uneven_sum

LENGTH = 4
RECIPE = Recipe(adapter="prefix", prefix_length=LENGTH)


def with_prefix(backbone: Backbone) -> PreTrainedModel:
    torch.manual_seed(0)
    encoder = backbone.load().eval()
    PREFIX.add(encoder, ["films"], RECIPE)
    activate(encoder, "films")
    encoder.embeddings.requires_grad_(False)
    return encoder


def vectors(encoder: PreTrainedModel) -> list[Tensor]:
    return [layer.prefix.tasks["films"].vectors for layer in encoder.encoder.layer]


def loss(encoder: PreTrainedModel) -> Tensor:
    return uneven_sum(encoder(input_ids=IDS, attention_mask=MASK).last_hidden_state[MASK.bool()])


def test_it_is_the_layer_on_a_longer_input_cut_to_the_tokens(backbone: Backbone) -> None:
    """y = layer([P; x])[L_p:], the mask with L_p visible positions in front; outputs and gradients."""
    encoder, plain = with_prefix(backbone), backbone.load().eval()
    starts = [start.detach().clone().requires_grad_() for start in vectors(encoder)]
    states = plain.embeddings(input_ids=IDS)
    mask = (1.0 - F.pad(MASK, (LENGTH, 0), value=1)[:, None, None, :]) * torch.finfo(torch.float32).min
    for layer, start in zip(plain.encoder.layer, starts, strict=True):
        longer = torch.cat([start.expand(len(states), -1, -1), states], dim=1)
        states = layer(longer, mask)[0][:, LENGTH:]
    found = encoder(input_ids=IDS, attention_mask=MASK).last_hidden_state
    assert found.shape == states.shape
    torch.testing.assert_close(found[MASK.bool()], states[MASK.bool()], rtol=1e-4, atol=1e-5)
    expected = torch.autograd.grad(uneven_sum(states[MASK.bool()]), starts)
    for gradient, wanted in zip(torch.autograd.grad(loss(encoder), vectors(encoder)), expected, strict=True):
        torch.testing.assert_close(gradient, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("training", [True, False])
def test_the_vectors_are_states_without_dropout_whatever_mode_the_model_is_in(
    training: bool, encoder: PreTrainedModel
) -> None:
    for module in encoder.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.5
    found = []
    for mode in (False, training):
        torch.manual_seed(0)
        found.append(token_states(encoder.train(mode), LENGTH))
        assert encoder.training == mode
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=0)
    assert not any(state.requires_grad for state in found[1])


def test_with_no_task_active_the_layers_are_the_backbones(backbone: Backbone) -> None:
    encoder, plain = backbone.load().eval(), backbone.load().eval()
    PREFIX.add(encoder, ["films"], RECIPE)
    expected = plain(input_ids=IDS, attention_mask=MASK).last_hidden_state
    assert torch.equal(encoder(input_ids=IDS, attention_mask=MASK).last_hidden_state, expected)


def test_a_mask_may_be_additive_or_true_where_visible(backbone: Backbone) -> None:
    attention = with_prefix(backbone).encoder.layer[0].attention.self
    states, visible = torch.randn(3, 9, 32), MASK[:, None, None].bool().expand(-1, 1, 9, -1)
    additive = torch.zeros(visible.shape).masked_fill(~visible, -torch.inf)
    found = [attention(states, attention_mask=mask)[0] for mask in (visible, additive)]
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-6)
