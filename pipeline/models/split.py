"""Split models: several tasks share the embeddings and the lower layers, and each has its own upper ones (Hayes 2024).

CerBERTus(k) has a copy of the top k layers for each task, all beginning as pretrained: k = 0 is one model for all, and
k = depth shares the embeddings alone. There is no pooler here to share or to copy: heads read hidden states.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from pipeline.models.frozen_prefix import lower_states, upper_states
from pipeline.models.layout import layers_of, stack_of
from pipeline.models.transfer_model import JointModel, TransferModel, backbone_inputs, pool
from pipeline.system.errors import PipelineError

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def split_encoder(encoder: PreTrainedModel, top: int, branches: int) -> list[PreTrainedModel]:
    """``branches`` encoders over one: all hold the same modules, but each its own copies of the ``top`` layers.

    The first is ``encoder`` itself. To be called before an encoder is made lean.

    Raises:
        PipelineError: ``top`` is more than the encoder's layers.
    """
    depth = len(layers_of(encoder))
    if not 0 <= top <= depth:
        raise PipelineError(f"split_layers {top}: the backbone has {depth} layers; give 0 to {depth}")
    return [encoder, *(_branch(encoder, depth - top) for _ in range(branches - 1))]


def _branch(encoder: PreTrainedModel, shared: int) -> PreTrainedModel:
    """An encoder with the embeddings and the lower ``shared`` layers of ``encoder``, and copies of those above."""
    stack = stack_of(encoder)
    layers = [*stack.layer[:shared], *copy.deepcopy(stack.layer[shared:])]
    own_stack = _shallow(stack)
    own_stack.layer = nn.ModuleList(layers)
    other = _shallow(encoder)
    name = next(name for name, module in encoder.named_children() if module is stack)
    setattr(other, name, own_stack)
    return other


def _shallow(module: Any) -> Any:
    """A module that holds the same children, and may be given others without the first one's being changed."""
    other = copy.copy(module)
    other._modules = dict(module._modules)
    return other


class SplitModel(JointModel):
    """N tasks' models over encoders of :func:`split_encoder`: one pass through the shared layers serves all.

    Args:
        top: layers that each task has for itself; 0 if heads are all they have.
    """

    def __init__(self, models: Sequence[TransferModel], top: int) -> None:
        super().__init__(models)
        self.top = top

    def encode(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        inputs = backbone_inputs(input_ids, attention_mask, token_type_ids)
        shared = len(layers_of(self._each[0].backbone)) - self.top
        states = lower_states(self._each[0].backbone, shared, inputs)
        each = ((model, upper_states(model.backbone, shared, states, inputs)) for model in self._each)
        return torch.stack([pool(hidden, attention_mask, model.pooling) for model, hidden in each], dim=1)
