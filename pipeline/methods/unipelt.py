"""UniPELT through AdapterHub (Mao et al. 2022): a gated bottleneck, prefix and LoRA together in every layer.

Gates estimate from each layer's input x how much each part helps; the bottleneck's gate reads LN2(a + h) instead, with
a the input of the FFN and h its output::

    g = mean_t sigmoid(w . x_t + b)        over the tokens t of the input, one number per input and gate

    attention over [g_P P_K; K], [g_P P_V; V]        prefix; one gate for both
    W x + g_L B A x                                  LoRA on query and value; one gate per projection replaces alpha / r
    LN2(a + h + g_A (U relu(D LN2(a + h) + b_d) + b_u))        bottleneck m after the FFN: the layer's output

(2md + m + d) + 2 L_p d + 4rd + 4 (d + 1) parameters per layer. The numbers of the prefix are trained as in
:mod:`prefix_tuning`, without the MLP of Li & Liang (2021).

AdapterHub's gates also average over padding, so a prediction would depend on the rest of its batch. These gates ignore
padding; without padding they equal AdapterHub's.
"""

from collections.abc import Collection
from typing import Any

import torch
from adapters import LoRAConfig, PrefixTuningConfig, SeqBnConfig, UniPELTConfig
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from pipeline.methods.houlsby import reduction_factor
from pipeline.methods.prefix_tuning import PrefixTuning
from pipeline.models.layout import attention_of, layers_of, mask_by_query
from pipeline.settings.recipe import Recipe

_LEAST = 1e-6
"""A gate's mean is kept this far from 0 and 1, where its logit would be infinite."""


class _Visible:
    """Records from a layer's attention mask which tokens of its input are not padding: (B, T), or None for all."""

    def __init__(self, layer: Any) -> None:
        attention, _, _, self._mask = attention_of(layer)
        self.tokens: Tensor | None = None
        attention.register_forward_pre_hook(self._see, with_kwargs=True)

    def _see(self, module: nn.Module, args: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        mask = mask_by_query(keywords.get(self._mask))
        if mask is not None:
            first = mask[:, 0, 0]  # what the first token sees
            mask = first == 0 if first.is_floating_point() else first
        self.tokens = mask


class MaskedGate(nn.Linear):
    """Replaces AdapterHub's gate, which averages its sigmoids; for an input with padding it returns one logit."""

    visible: _Visible

    def forward(self, states: Tensor) -> Tensor:
        logits = super().forward(states)  # (B, T, gates)
        if self.visible.tokens is None:
            return logits
        tokens = self.visible.tokens[..., None].float()
        mean = (logits.float().sigmoid() * tokens).sum(1, keepdim=True) / tokens.sum(1, keepdim=True)
        return torch.logit(mean, _LEAST).to(logits.dtype)  # (B, 1, gates)


def _config(recipe: Recipe, backbone: PretrainedConfig) -> UniPELTConfig:
    settings = recipe.unipelt
    return UniPELTConfig(
        PrefixTuningConfig(flat=True, prefix_length=settings.prefix),
        SeqBnConfig(reduction_factor=reduction_factor(backbone.hidden_size, settings.bottleneck)),
        LoRAConfig(r=settings.rank, attn_matrices=["q", "v"]),
    )


class Unipelt(PrefixTuning):
    """AdapterHub's UniPELT, with gates that ignore padding."""

    stock_lacks = "gates that leave padding out"

    def put_in(self, backbone: PreTrainedModel, name: str, recipe: Recipe, drop_layers: Collection[int]) -> None:
        super().put_in(backbone, name, recipe, drop_layers)
        for index, layer in enumerate(layers_of(backbone)):
            if index in drop_layers:
                continue
            if not hasattr(layer, "visible"):
                layer.visible = _Visible(layer)
            for path, module in layer.named_modules():
                if isinstance(module, nn.Linear) and (path.endswith(".gate") or ".prefix_gates." in path):
                    module.__class__ = MaskedGate
                    vars(module)["visible"] = layer.visible


UNIPELT = Unipelt(_config, within_width=("unipelt_bottleneck", "unipelt_rank"))
