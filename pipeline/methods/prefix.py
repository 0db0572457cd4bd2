"""Prefixes of hidden states (after Li & Liang 2021, as Liu & Shen 2023 used them).

Each layer and task has L_p trained vectors, which precede the layer's input x and are removed from its output::

    y = layer([P; x])[L_p:]        P in R^{L_p x d}

The removed outputs need not be computed, so the vectors serve as keys and values alone: ``K = W_K [P; x]`` and
``V = W_V [P; x]``, with the first L_p visible to all tokens. They have no positions, and pooling never sees them.

Vectors that are equal at the start would have equal gradients for ever (without attention dropout): one vector with
log L_p added to its score. They are therefore initialised to the states of different tokens.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from pipeline.methods.saved import SiteAdapter
from pipeline.models.layout import TaskSite, attention_of, kept_indices, layers_of, put_into_site
from pipeline.settings.recipe import Recipe


class PrefixSite(TaskSite):
    """Prepends the active task's prefix to the input of the keys and values of ``layer``, and unmasks it."""

    mixes_tokens = True  # each input has the prefix before its own keys

    def __init__(self, layer: Any) -> None:
        super().__init__()
        attention, *projections, self._mask = attention_of(layer)
        attention.register_forward_pre_hook(self._show, with_kwargs=True)
        for projection in projections:
            projection.register_forward_pre_hook(self._put_in_front)

    def _show(
        self, module: nn.Module, args: tuple[Any, ...], keywords: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        mask = keywords.get(self._mask)
        if self.current is None or mask is None:
            return None
        visible = 0.0 if mask.is_floating_point() else 1
        wider = F.pad(mask, (len(self.current.vectors), 0), value=visible)  # (B, 1, T, L_p + T)
        return args, {**keywords, self._mask: wider}

    def _put_in_front(self, projection: nn.Module, args: tuple[Tensor]) -> tuple[Tensor] | None:
        if self.current is None:
            return None
        (states,) = args
        vectors = self.current.vectors.to(states.dtype).expand(states.shape[0], -1, -1)
        return (torch.cat([vectors, states], dim=1),)  # (B, L_p + T, d)


def _add(backbone: PreTrainedModel, tasks: Sequence[str], recipe: Recipe) -> None:
    starts = token_states(backbone, recipe.prefix.length)
    for task in tasks:
        for index in kept_indices(backbone, recipe.adapter.drop_layers):
            vectors = nn.ParameterDict({"vectors": starts[index].clone()})  # (L_p, d)
            put_into_site(PrefixSite, layers_of(backbone)[index], "prefix", task, vectors)


@torch.no_grad()
def token_states(backbone: Any, length: int) -> list[Tensor]:
    """The input of each layer of ``backbone``, (length, d), for ``length`` random tokens."""
    config, was_training = backbone.config, backbone.training
    words = torch.randperm(config.vocab_size)
    words = words[words != config.pad_token_id]  # padding has no position of its own
    tokens = words.repeat(-(-length // len(words)))[:length].unsqueeze(0)
    backbone.eval()
    states = backbone(input_ids=tokens.to(backbone.device), output_hidden_states=True).hidden_states[:-1]
    backbone.train(was_training)
    return [state[0] for state in states]


PREFIX = SiteAdapter(_add)
