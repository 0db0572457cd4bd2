"""BitFit (Ben Zaken et al. 2022): trains only the encoder's biases, those of linear layers and of LayerNorms.

Each bias b is trained as ``b + o`` with an offset o that starts at zero. AdamW's updates do not depend on a parameter's
initial value, and vectors have no weight decay, so this is equivalent to training the biases. The backbone stays bit
for bit unchanged, and each task saves only its offsets: 7d + d_ff numbers per layer, and d for the embeddings'
LayerNorm.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from pipeline.methods.saved import SiteAdapter
from pipeline.models.layout import TaskSite, base_of, kept_layers, put_into_site
from pipeline.settings.recipe import Recipe


class OffsetSite(TaskSite):
    """Adds the active task's offset to the output of ``module``, which has a bias."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        module.register_forward_hook(self._add)

    def _add(self, module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor | None:
        return None if self.current is None else output + self.current.offset.to(output.dtype)


def _add(backbone: PreTrainedModel, tasks: Sequence[str], recipe: Recipe) -> None:
    dropped = recipe.adapter.drop_layers
    # Nothing trains below the lowest layer with modules, so the embeddings go with layer 0.
    parts: list[nn.Module] = [*([] if 0 in dropped else base_of(backbone)), *kept_layers(backbone, dropped)]
    modules = [m for part in parts for m in part.modules() if isinstance(m, nn.Linear | nn.LayerNorm)]
    for task in tasks:
        for module in (module for module in modules if module.bias is not None):
            offset = nn.ParameterDict({"offset": torch.zeros_like(module.bias)})
            put_into_site(OffsetSite, module, "bitfit", task, offset)


BITFIT = SiteAdapter(_add)
