"""TransferModel: backbone, pooling and head as one module; cross and siamese pairs."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor, nn

from pipeline.tasks import Encoding, Pooling


def pool(hidden: Tensor, mask: Tensor, pooling: Pooling) -> Tensor:
    """Sentence vectors (B, d) from hidden states (B, T, d): the first token, or the mean over unmasked tokens."""
    if pooling == "cls":
        return hidden[:, 0]
    weights = mask.unsqueeze(-1).to(hidden.dtype)  # (B, T, 1)
    return (hidden * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1)


class TransferModel(nn.Module):
    """``head(pool(backbone(input)))``.

    A siamese batch holds 2B inputs, first sentences before second ones; they run as one batch.
    A backbone in which nothing is trained stays in evaluation mode, so its dropout does not blur the head's input.
    """

    def __init__(self, backbone: nn.Module, head: nn.Module, encoding: Encoding, pooling: Pooling) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head
        self.encoding = encoding
        self.pooling = pooling

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        if not any(parameter.requires_grad for parameter in self.backbone.parameters()):
            self.backbone.eval()
        return self

    def encode(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        """Sentence vectors (B, d) of inputs (B, T)."""
        types = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        hidden = self.backbone(input_ids=input_ids, attention_mask=attention_mask, **types).last_hidden_state
        return pool(hidden, attention_mask, self.pooling)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        """Outputs of the head, (B, outputs), in fp32 whatever the backbone computes in."""
        vectors = self.encode(input_ids, attention_mask, token_type_ids).float()
        with torch.autocast(vectors.device.type, enabled=False):
            if self.encoding == "siamese":
                first, second = vectors.chunk(2)
                return self.head(first, second)
            return self.head(vectors)

    def trainable_state(self) -> dict[str, Tensor]:
        """The trained tensors by name, on the CPU: what a checkpoint or a kept model needs."""
        return {
            name: parameter.detach().cpu().clone()
            for name, parameter in self.named_parameters()
            if parameter.requires_grad
        }
