"""Projected attention layers (Stickland & Murray 2019): a narrow attention layer beside each layer of the backbone.

With x the layer's input and a the output of its attention half::

    TS(x) = gelu(V_D MHA(V_E x))        V_E in R^{s x d}, V_D in R^{d x s}
    y = LN2(a + FFN(a) + TS(x))

A task's V_E and V_D are shared by all layers; each layer has its own Q, K and V in R^{s x s}, and no output projection.
The trailing GELU is in both published codes, though not in the equation; like the equation, and unlike one of them,
there is no dropout within. V_D is zero at the start, so the first forward pass is the backbone's (gelu(0) = 0).
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from pipeline.methods.saved import SiteAdapter
from pipeline.models.layout import TaskSite, kept_layers, mask_by_query, norms_of, put_into_site
from pipeline.settings.recipe import Recipe


class Pal(nn.Module):
    """TS of one layer and task; ``encode`` V_E and ``decode`` V_D are shared by the layers."""

    mixes_tokens = True

    def __init__(self, encode: nn.Linear, decode: nn.Linear, heads: int) -> None:
        super().__init__()
        size = encode.out_features
        self.encode, self.decode, self.heads = encode, decode, heads
        self.query, self.key, self.value = (_linear(size, size) for _ in range(3))

    def forward(self, states: Tensor, mask: Tensor | None, asking: int) -> Tensor:
        """TS (B, ``asking``, d) of the first ``asking`` of ``states`` (B, T, d), which attend to all.

        The mask is additive, or true where visible, and broadcasts over (B, heads, T, T).
        """
        narrow = self.encode(states)  # (B, T, s)
        query, key, value = (
            projection(part).unflatten(-1, (self.heads, -1)).transpose(1, 2)  # (B, heads, T, s / heads)
            for projection, part in ((self.query, narrow[:, :asking]), (self.key, narrow), (self.value, narrow))
        )
        if mask is not None:
            mask = mask[:, :, :asking]
        attended = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return F.gelu(self.decode(attended.transpose(1, 2).flatten(2)))


class PalSite(TaskSite):
    """Keeps the input and mask of ``layer``, and adds TS to the input of its LN2."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self._seen: tuple[Tensor, Tensor | None] | None = None
        layer.register_forward_pre_hook(self._see, with_kwargs=True)
        norms_of(layer)[1].register_forward_pre_hook(self._add)

    def _see(self, layer: nn.Module, args: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        if self.current is not None:
            mask = args[1] if len(args) > 1 else keywords.get("attention_mask", keywords.get("attn_mask"))
            self._seen = (args[0], mask_by_query(mask))

    def _add(self, norm: nn.Module, args: tuple[Tensor]) -> tuple[Tensor] | None:
        if self._seen is None:
            return None
        # In a lean encoder, the last layer has the first token's row alone.
        (hidden,), (states, mask), self._seen = args, self._seen, None
        return (hidden + self.current(states, mask, hidden.shape[1]),)


def add_pal(backbone: PreTrainedModel, tasks: Sequence[str], recipe: Recipe) -> None:
    width, size, heads = backbone.config.hidden_size, recipe.pal.size, recipe.pal.heads
    for task in tasks:
        encode, decode = _linear(width, size), _linear(size, width)
        nn.init.zeros_(decode.weight)
        for layer in kept_layers(backbone, recipe.adapter.drop_layers):
            put_into_site(PalSite, layer, "pal", task, Pal(encode, decode, heads))


PAL = SiteAdapter(add_pal)


def _linear(inputs: int, outputs: int) -> nn.Linear:
    linear = nn.Linear(inputs, outputs)
    nn.init.normal_(linear.weight, std=0.02)
    nn.init.zeros_(linear.bias)
    return linear
