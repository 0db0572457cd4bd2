"""The other side of a comparison: transformers and AdapterHub as in their manuals, without this project."""

from collections.abc import Mapping
from pathlib import Path

import adapters
import torch
from adapters.composition import Fuse
from torch import Tensor, nn
from transformers import BertModel


class PlainClassifier(nn.Module):
    """A BERT, the mean of its hidden states, dropout and one linear layer."""

    def __init__(self, encoder: BertModel, outputs: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.encoder = encoder
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Linear(encoder.config.hidden_size, outputs)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        hidden = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        weights = attention_mask.unsqueeze(-1).to(hidden.dtype)
        return self.out(self.dropout((hidden * weights).sum(1) / weights.sum(1)))


def load_encoder(folder: Path) -> BertModel:
    return BertModel.from_pretrained(str(folder), add_pooling_layer=False, dtype=torch.float32)


def load_fusion(folder: Path, sources: Mapping[str, Path]) -> BertModel:
    """An encoder with stock fusion over the adapters in ``sources``, ready to train."""
    encoder = load_encoder(folder)
    adapters.init(encoder)
    for name, source in sources.items():
        encoder.load_adapter(str(source), load_as=name, with_head=False, use_safetensors=True)
    setup = Fuse(*sources)
    encoder.add_adapter_fusion(setup)
    encoder.train_adapter_fusion(setup)
    return encoder
