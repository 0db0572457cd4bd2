"""Split models: tasks share the embeddings and the lower layers, and each has its own upper layers (Hayes 2024).

CerBERTus(k) has a copy of the top k layers per task, all initialised to the pretrained ones: with k = 0 all tasks share
one model, with k = depth only the embeddings. There is no pooler to share or to copy: heads read hidden states.
"""

import copy
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from pipeline.models.layout import layers_of, lower_states, stack_of, upper_states
from pipeline.models.transfer_model import JointModel, TransferModel
from pipeline.system.errors import PipelineError


def split_encoder(encoder: PreTrainedModel, top: int, branches: int) -> list[PreTrainedModel]:
    """``branches`` encoders that share all modules of one but for their own copies of the ``top`` layers.

    The first is ``encoder`` itself. Call this before an encoder is made lean.
    """
    depth = len(layers_of(encoder))
    if not 0 <= top <= depth:
        raise PipelineError(f"split_layers {top}: the backbone has {depth} layers; give 0 to {depth}")
    stack = stack_of(encoder)
    name = next(name for name, module in encoder.named_children() if module is stack)
    encoders = [encoder]
    for _ in range(branches - 1):
        own_stack, other = _shallow(stack), _shallow(encoder)
        own_stack.layer = nn.ModuleList([*stack.layer[: depth - top], *copy.deepcopy(stack.layer[depth - top :])])
        setattr(other, name, own_stack)
        encoders.append(other)
    return encoders


def _shallow(module: Any) -> Any:
    """A module with the same children, which may be replaced without changing the first module."""
    other = copy.copy(module)
    other._modules = dict(module._modules)
    return other


class SplitModel(JointModel):
    """N tasks' models over encoders of :func:`split_encoder`: one pass through the shared layers serves all.

    Each task has the ``top`` layers for itself; with 0 only heads are task-specific.
    """

    def __init__(self, models: Sequence[TransferModel], top: int) -> None:
        super().__init__(models)
        self.top = top

    def _streams(self, inputs: dict[str, Tensor]) -> Sequence[Tensor]:
        shared = len(layers_of(self._each[0].backbone)) - self.top
        states = lower_states(self._each[0].backbone, shared, inputs)
        return [upper_states(model.backbone, shared, states, inputs) for model in self._each]
