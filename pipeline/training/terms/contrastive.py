"""Supervised contrastive term: rows of a class should have similar sentence vectors (Khosla et al. 2020, equation 2).

With the head's features f of a batch's rows, z = f / |f|, and P(i) the other rows of the class of i::

    L = mean_i -1/|P(i)| sum_{p in P(i)} log( exp(z_i . z_p / tau) / sum_{a != i} exp(z_i . z_a / tau) )

over the rows i with a non-empty P(i). Gunel et al. (2021) add it to cross-entropy when they fine-tune on few rows. Only
rows of one pass are compared: with ``gradient_accumulation_steps`` those of a piece.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pipeline.data.batches import Piece
from pipeline.models.transfer_model import CosineHead, Head
from pipeline.training.objectives import Regularised, Term


class Contrastive(Term):
    """The term. It reads the features of the head of ``run.model`` in the last forward pass, in training mode."""

    passes = 0

    def __init__(self, run: Regularised) -> None:
        self._settings = run.recipe.contrastive
        self._features: Tensor | None = None
        for head in run.model.modules():
            if isinstance(head, Head | CosineHead):
                head.register_forward_pre_hook(self._keep)

    def _keep(self, head: nn.Module, vectors: tuple[Tensor, ...]) -> None:
        self._features = head.features(*vectors) if isinstance(head, Head) and head.training else None

    def __call__(self, model: nn.Module, piece: Piece, outputs: Tensor) -> Tensor:
        """The term for the piece's rows, whose ``outputs`` (B, k) the model has just computed; 0 for scores."""
        labels, features, self._features = piece.batch["labels"], self._features, None
        if features is None or labels.is_floating_point():
            return outputs.new_zeros(())
        return self._settings.weight * contrastive(features, labels, self._settings.temperature)


def contrastive(features: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """L of ``features`` (B, d) with class numbers ``labels`` (B,); 0 if all classes differ."""
    z = F.normalize(features.float(), dim=-1)
    itself = torch.eye(len(z), dtype=torch.bool, device=z.device)
    similar = (z @ z.T / temperature).masked_fill(itself, -torch.inf)
    positive = (labels[:, None] == labels[None, :]) & ~itself
    log_share = (similar - similar.logsumexp(dim=1, keepdim=True)).masked_fill(~positive, 0.0)
    counts = positive.sum(dim=1)
    return -(log_share.sum(dim=1) / counts.clamp(min=1)).sum() / (counts > 0).sum().clamp(min=1)
