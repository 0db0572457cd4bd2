"""Heads: from sentence vectors to the outputs that an objective reads.

With features f of one vector u (B, d) or of a pair u, v, and optional dropout on vectors and features:

| kind | outputs | features |
| --- | --- | --- |
| linear | ``W f + b`` | ``[u; v]`` |
| mlp (Liu & Shen 2023) | ``W2 relu(W1 f + b1) + b2``, with a hidden layer of width d | ``[u; v]`` |
| difference (Reimers & Gurevych 2019, section 3) | as linear | ``[u; v; |u - v|]`` |
| difference-mlp (Liu & Shen 2023) | as mlp | ``[u; v; |u - v|]`` |
| comparison | as linear | ``[u; v; |u - v|; u v; cos(u, v)]`` |
| cosine (Xu 2024, figures 1 and 2) | ``cos(u, v)``, unclamped, without weights | |
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pipeline.data.tasks import HeadKind

Features = Callable[..., Tensor]


def joined(u: Tensor, v: Tensor | None = None) -> Tensor:
    """``[u; v]`` (B, 2d), or u itself."""
    return u if v is None else torch.cat([u, v], dim=-1)


def pair_features(u: Tensor, v: Tensor) -> Tensor:
    """``[u; v; |u - v|]``, (B, 3d), of two sentences' vectors (B, d)."""
    return torch.cat([u, v, (u - v).abs()], dim=-1)


def compared(u: Tensor, v: Tensor) -> Tensor:
    """``[u; v; |u - v|; u v; cos(u, v)]``, (B, 4d + 1): features that let a linear model compare two vectors."""
    return torch.cat([pair_features(u, v), u * v, F.cosine_similarity(u, v, dim=-1).unsqueeze(-1)], dim=-1)


class Head(nn.Module):
    """An output layer over the features, after a hidden layer of ``hidden`` units unless that is zero.

    A ``threshold``, if any, is that of :class:`CosineHead`, for all outputs.
    """

    def __init__(
        self,
        features: Features,
        inputs: int,
        outputs: int,
        dropout: float,
        vector_dropout: float,
        hidden: int = 0,
        tuned_threshold: bool = False,
    ) -> None:
        super().__init__()
        self.features = features
        self.vector_dropout = nn.Dropout(vector_dropout)
        self.dropout = nn.Dropout(dropout)
        self.hidden = nn.Linear(inputs, hidden) if hidden else None
        self.out = nn.Linear(hidden or inputs, outputs)
        self.threshold = _threshold(tuned_threshold)

    def forward(self, *vectors: Tensor) -> Tensor:
        features = self.dropout(self.features(*map(self.vector_dropout, vectors)))
        outputs = self.out(features if self.hidden is None else F.relu(self.hidden(features)))
        return outputs if self.threshold is None or self.training else outputs - self.threshold


class CosineHead(nn.Module):
    """The cosine; in evaluation mode minus ``threshold``, if any, so that 0 separates the two classes.

    The threshold is not trained: it is tuned after training and saved with the head.
    """

    def __init__(self, vector_dropout: float = 0.0, tuned_threshold: bool = False) -> None:
        super().__init__()
        self.vector_dropout = nn.Dropout(vector_dropout)
        self.threshold = _threshold(tuned_threshold)

    def forward(self, u: Tensor, v: Tensor) -> Tensor:
        cosine = F.cosine_similarity(self.vector_dropout(u), self.vector_dropout(v), dim=-1).unsqueeze(-1)
        return cosine if self.threshold is None or self.training else cosine - self.threshold


def _threshold(tuned: bool) -> nn.Parameter | None:
    return nn.Parameter(torch.zeros(()), requires_grad=False) if tuned else None


def is_threshold(name: str) -> bool:
    """Whether the parameter ``name`` of a model is a head's tuned threshold."""
    return f".{name}".endswith(".head.threshold")


def build_head(
    kind: HeadKind,
    width: int,
    outputs: int,
    vectors: int,
    dropout: float,
    tuned_threshold: bool = False,
    vector_dropout: float = 0.0,
) -> nn.Module:
    """A fresh head for examples of ``vectors`` sentence vectors (1, or 2 for a siamese pair) of size ``width``.

    ``outputs`` is the number of classes, or 1 for a score or for two classes with one logit. ``dropout`` applies to the
    features, ``vector_dropout`` to each sentence vector before that.
    """
    if kind == "cosine":
        return CosineHead(vector_dropout, tuned_threshold)
    of_pairs: dict[str, tuple[Features, int]] = {
        "difference": (pair_features, 3 * width),
        "comparison": (compared, 4 * width + 1),
    }
    features, inputs = of_pairs.get(kind.removesuffix("-mlp"), (joined, vectors * width))
    hidden = width if kind.endswith("mlp") else 0
    return Head(features, inputs, outputs, dropout, vector_dropout, hidden, tuned_threshold)
