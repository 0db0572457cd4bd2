"""Run only the lower or only the upper layers of an encoder, by transformers' own code."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from pipeline.models.layout import stack_of


def lower_states(backbone: nn.Module, depth: int, inputs: dict[str, Tensor]) -> Tensor:
    """Hidden states (B, T, d) after the embeddings and the lower ``depth`` layers."""
    with _cut(backbone, slice(0, depth), backbone.embeddings):
        return backbone(**inputs).last_hidden_state


def upper_states(backbone: nn.Module, depth: int, states: Tensor, inputs: dict[str, Tensor]) -> Tensor:
    """Last hidden states from those of :func:`lower_states`."""
    with _cut(backbone, slice(depth, None), _Given(states)):
        return backbone(**inputs).last_hidden_state


@contextmanager
def _cut(backbone: Any, part: slice, embeddings: Any) -> Iterator[None]:
    """Give ``backbone`` fewer layers, and other embeddings, until the context ends."""
    stack, own = stack_of(backbone), backbone.embeddings
    layers = stack.layer
    stack.layer, backbone.embeddings = layers[part], embeddings
    try:
        yield
    finally:
        stack.layer, backbone.embeddings = layers, own


class _Given(nn.Module):
    """Stands in for the embeddings and returns ``states`` for any input."""

    def __init__(self, states: Tensor) -> None:
        super().__init__()
        self.states = states

    def forward(self, *_: Any, **__: Any) -> Tensor:
        return self.states
