"""Heads: from sentence vectors to the outputs an objective reads. One class a kind."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pipeline.data.tasks import HeadKind


class LinearHead(nn.Module):
    """``W dropout([u; v]) + b``: one vector (B, d), or two joined (B, 2d), to (B, outputs)."""

    def __init__(self, width: int, outputs: int, vectors: int, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Linear(vectors * width, outputs)

    def forward(self, u: Tensor, v: Tensor | None = None) -> Tensor:
        return self.out(self.dropout(u if v is None else torch.cat([u, v], dim=-1)))


class MlpHead(nn.Module):
    """``W2 relu(W1 dropout([u; v]) + b1) + b2`` with a hidden layer of the backbone's width (Liu & Shen 2023)."""

    def __init__(self, width: int, outputs: int, vectors: int, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.hidden = nn.Linear(vectors * width, width)
        self.out = nn.Linear(width, outputs)

    def forward(self, u: Tensor, v: Tensor | None = None) -> Tensor:
        joined = self.dropout(u if v is None else torch.cat([u, v], dim=-1))
        return self.out(F.relu(self.hidden(joined)))


def pair_features(u: Tensor, v: Tensor) -> Tensor:
    """``[u; v; |u - v|]``, (B, 3d), of two sentences' vectors (B, d) (Reimers & Gurevych 2019, section 3)."""
    return torch.cat([u, v, (u - v).abs()], dim=-1)


class DifferenceHead(nn.Module):
    """``W dropout([u; v; |u - v|]) + b`` (Reimers & Gurevych 2019, section 3)."""

    def __init__(self, width: int, outputs: int, vectors: int, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Linear(3 * width, outputs)

    def forward(self, u: Tensor, v: Tensor) -> Tensor:
        return self.out(self.dropout(pair_features(u, v)))


class DifferenceMlpHead(nn.Module):
    """``W2 relu(W1 dropout([u; v; |u - v|]) + b1) + b2``, hidden layer of the backbone's width (Liu & Shen 2023)."""

    def __init__(self, width: int, outputs: int, vectors: int, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.hidden = nn.Linear(3 * width, width)
        self.out = nn.Linear(width, outputs)

    def forward(self, u: Tensor, v: Tensor) -> Tensor:
        return self.out(F.relu(self.hidden(self.dropout(pair_features(u, v)))))


class CosineHead(nn.Module):
    """``cos(u, v)`` as (B, 1), unclamped; it has no weights (Xu 2024, figures 1 and 2)."""

    def __init__(self, width: int, outputs: int, vectors: int, dropout: float) -> None:
        super().__init__()

    def forward(self, u: Tensor, v: Tensor) -> Tensor:
        return F.cosine_similarity(u, v, dim=-1).unsqueeze(-1)


_HEADS: dict[HeadKind, type[nn.Module]] = {
    "linear": LinearHead,
    "mlp": MlpHead,
    "difference": DifferenceHead,
    "difference-mlp": DifferenceMlpHead,
    "cosine": CosineHead,
}


def build_head(kind: HeadKind, width: int, outputs: int, vectors: int, dropout: float) -> nn.Module:
    """A fresh head.

    Args:
        width: size d of a sentence vector.
        outputs: one a class, or 1 for a score and for two classes by one logit.
        vectors: sentence vectors an example has: 1, or 2 for a siamese pair.
        dropout: on the sentence vectors.
    """
    return _HEADS[kind](width, outputs, vectors, dropout)
