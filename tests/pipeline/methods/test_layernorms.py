"""A task's own LayerNorms begin as the pretrained ones, take their place, and leave them as they are."""

import torch
from torch import nn

from pipeline.methods.layernorms import add_layernorms, replaced_norms
from pipeline.models.backbone import Backbone
from pipeline.models.layout import norms_of
from pipeline.models.switching import activate
from tests.pipeline.methods.adapted import hidden


def test_they_begin_as_the_pretrained_ones_and_go_their_own_way(backbone: Backbone) -> None:
    encoder = backbone.load()
    plain = hidden(encoder)
    for task in ("films", "meals"):
        add_layernorms(encoder, task)
    activate(encoder, "films")
    assert torch.equal(hidden(encoder), plain)
    with torch.no_grad():
        for layer in encoder.encoder.layer:
            for norm in norms_of(layer):
                norm.own.tasks["films"].bias.add_(1.0)
    assert not torch.allclose(hidden(encoder), plain)
    activate(encoder, "meals")
    assert torch.equal(hidden(encoder), plain)
    backbone.check_unchanged(encoder)


def test_both_of_each_layer_are_replaced_and_not_that_of_the_embeddings(backbone: Backbone) -> None:
    encoder = backbone.load()
    add_layernorms(encoder, "films", (1,))
    assert replaced_norms(encoder) == [*norms_of(encoder.encoder.layer[0])]
    count = sum(isinstance(module, nn.LayerNorm) for module in encoder.modules())
    assert count == 1 + 2 * 2 + 2
