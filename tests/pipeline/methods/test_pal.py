"""Projected attention layers compute their paper's equation, share what they share, and begin as nothing."""

import copy
import math

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel

from pipeline.methods.pal import Pal, add_pal
from pipeline.models.backbone import Backbone
from pipeline.models.layout import activate
from pipeline.settings.recipe import Recipe
from tests.pipeline.methods.adapted import IDS, MASK, hidden, randomise


def with_pal(backbone: Backbone, random: bool = True) -> PreTrainedModel:
    torch.manual_seed(0)
    encoder = backbone.load().eval()
    add_pal(encoder, ["films"], Recipe(pal_size=12, pal_heads=3))
    activate(encoder, "films")
    if random:
        randomise(encoder, ".pal.")
    return encoder


def ts(pal: Pal, states: Tensor, visible: Tensor) -> Tensor:
    """gelu(V_D MHA(V_E x)), head by head, with a softmax over the ``visible`` tokens alone."""
    narrow = states @ pal.encode.weight.T + pal.encode.bias
    query, key, value = (narrow @ p.weight.T + p.bias for p in (pal.query, pal.key, pal.value))
    size = narrow.shape[-1] // pal.heads
    heads = []
    for head in range(pal.heads):
        part = slice(head * size, (head + 1) * size)
        scores = query[..., part] @ key[..., part].transpose(1, 2) / math.sqrt(size)
        scores = scores.masked_fill(~visible[:, None, :], -torch.inf)
        heads.append(scores.softmax(-1) @ value[..., part])
    out = torch.cat(heads, -1) @ pal.decode.weight.T + pal.decode.bias
    return 0.5 * out * (1 + torch.erf(out / math.sqrt(2)))


def test_it_computes_the_equation(backbone: Backbone) -> None:
    """y = LN2(a + FFN(a) + TS(x)), with the layer's own modules for all but TS."""
    encoder = with_pal(backbone)
    with torch.no_grad():
        outputs = encoder(input_ids=IDS, attention_mask=MASK, output_hidden_states=True)
        for index, layer in enumerate(encoder.encoder.layer):
            x, y = outputs.hidden_states[index : index + 2]
            bias = (1.0 - MASK[:, None, None, :]) * torch.finfo(torch.float32).min
            a = layer.attention(x, attention_mask=bias)[0]
            added = a + layer.output.dense(layer.intermediate(a)) + ts(layer.pal.tasks["films"], x, MASK.bool())
            norm = layer.output.LayerNorm
            expected = F.layer_norm(added, added.shape[-1:], norm.weight, norm.bias, norm.eps)
            torch.testing.assert_close(y[MASK.bool()], expected[MASK.bool()], rtol=1e-4, atol=1e-5)


def test_at_the_start_the_model_is_the_backbone(backbone: Backbone) -> None:
    found = hidden(with_pal(backbone, random=False))
    torch.testing.assert_close(found, hidden(backbone.load()), rtol=0, atol=1e-6)


def test_all_layers_teach_what_they_share(backbone: Backbone) -> None:
    """The gradient of V_E is the sum of those that each layer would give a V_E of its own with the same numbers."""
    encoder = with_pal(backbone)
    modules = [layer.pal.tasks["films"] for layer in encoder.encoder.layer]

    def gradients(*weights: Tensor) -> tuple[Tensor, ...]:
        states = encoder(input_ids=IDS, attention_mask=MASK).last_hidden_state
        return torch.autograd.grad(states[..., 0].sum(), weights)

    (whole,) = gradients(modules[0].encode.weight)
    for module in modules:
        module.encode = copy.deepcopy(module.encode)
    parts = gradients(*(module.encode.weight for module in modules))
    assert len(parts) > 1 and all(part.any() for part in parts)
    torch.testing.assert_close(whole, sum(parts))
