"""TransferModel: backbone, pooling and head as one module; cross and siamese pairs.

Several over one backbone: JointModel answers for all at once, MultitaskModel trains on all in turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pipeline.data.tasks import Encoding, Pooling
from pipeline.models.frozen_prefix import above, completed, frozen_parts
from pipeline.models.switching import activate


def pool(hidden: Tensor, mask: Tensor, pooling: Pooling) -> Tensor:
    """Sentence vectors (B, d) from hidden states (B, T, d): the first token, or the mean over unmasked tokens."""
    if pooling == "cls":
        return hidden[:, 0]
    weights = mask.unsqueeze(-1).to(hidden.dtype)  # (B, T, 1)
    return (hidden * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1)


class TransferModel(nn.Module):
    """``head(pool(backbone(input)))``.

    A siamese batch holds 2B inputs, first sentences before second ones, or each distinct sentence once and ``pairs``
    that says where it goes; they run as one batch.
    The layers below the lowest one that trains, and the whole backbone if nothing in it does, stay in evaluation mode,
    so that their dropout does not blur what is trained on top; what they give may be handed in as ``known``.
    A second encoder, static or trained too, may stand beside the backbone: the head then reads the vectors of both,
    joined (Hayes 2024, "static + finetune" and "multi + triple").
    Where several tasks have modules in the backbone, those of ``task`` are active whenever this model runs it.
    """

    def __init__(
        self,
        backbone: nn.Module,
        head: nn.Module,
        encoding: Encoding,
        pooling: Pooling,
        task: str | None = None,
        second: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        # Under this name, learning rates by layer find it.
        self.second = nn.ModuleDict({"backbone": second} if second is not None else {})
        self.head = head
        self.encoding = encoding
        self.pooling = pooling
        self.task = task

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        for backbone in (self.backbone, *self.second.values()):
            for part in frozen_parts(backbone):
                part.eval()
        return self

    def encode(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        token_type_ids: Tensor | None = None,
        known: Tensor | None = None,
        absent: Tensor | None = None,
    ) -> Tensor:
        """Sentence vectors, (B, d) or with two encoders (B, 2d), of inputs (B, T).

        ``known`` and ``absent`` are :class:`PrefixCache`'s.
        """
        inputs = backbone_inputs(input_ids, attention_mask, token_type_ids)
        if self.task is not None:
            activate(self.backbone, self.task)
        if known is None:
            encoders = (self.backbone, *self.second.values())
            vectors = [pool(e(**inputs).last_hidden_state, attention_mask, self.pooling) for e in encoders]
            return vectors[0] if len(vectors) == 1 else torch.cat(vectors, dim=-1)
        known = completed(self, known, absent, inputs)
        if known.ndim == 2:
            return known
        return pool(above(self.backbone, known, inputs), attention_mask, self.pooling)

    def decide(self, vectors: Tensor, pairs: Tensor | None = None) -> Tensor:
        """Outputs of the head, (B, outputs), in fp32 whatever the backbone computes in.

        Args:
            vectors: one an example; of siamese pairs 2B, first sentences before second ones.
            pairs: (2B,), where each sentence stands in ``vectors``, so that a sentence need stand there only once.
        """
        vectors = vectors.float()
        with torch.autocast(vectors.device.type, enabled=False):
            if self.encoding == "siamese":
                # An embedding adds the gradients of a sentence that repeats in one order; plain indexing on a CPU adds
                # them as its threads come.
                both = vectors if pairs is None else F.embedding(pairs, vectors)
                return self.head(*both.chunk(2))
            return self.head(vectors)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        token_type_ids: Tensor | None = None,
        pairs: Tensor | None = None,
        known: Tensor | None = None,
        absent: Tensor | None = None,
    ) -> Tensor:
        """Outputs of the head, (B, outputs); ``pairs`` as :meth:`decide`, the last two as :meth:`encode` reads them."""
        return self.decide(self.encode(input_ids, attention_mask, token_type_ids, known, absent), pairs)


class JointModel(nn.Module):
    """N tasks' models over one backbone that gives N streams (:func:`parallel_adapters`): one pass serves all.

    Pooling and head are each task's own; outputs stand side by side in the order of ``models``.
    """

    def __init__(self, models: Sequence[TransferModel]) -> None:
        super().__init__()
        self.models = nn.ModuleList(models)
        self._each = tuple(models)

    def encode(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        """Sentence vectors (B, N, d) of inputs (B, T)."""
        inputs = backbone_inputs(input_ids, attention_mask, token_type_ids)
        hidden = self._each[0].backbone(**inputs).last_hidden_state  # (N B, T, d)
        streams = zip(self._each, hidden.chunk(len(self._each)), strict=True)
        return torch.stack([pool(stream, attention_mask, model.pooling) for model, stream in streams], dim=1)

    def decide(self, vectors: Tensor, pairs: Tensor | None = None) -> Tensor:
        """Outputs of all heads, (B, sum of outputs), of vectors (B, N, d); ``pairs`` as in :class:`TransferModel`."""
        streams = zip(self._each, vectors.unbind(dim=1), strict=True)
        return torch.cat([model.decide(stream, pairs) for model, stream in streams], dim=-1)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        token_type_ids: Tensor | None = None,
        pairs: Tensor | None = None,
    ) -> Tensor:
        return self.decide(self.encode(input_ids, attention_mask, token_type_ids), pairs)


class MultitaskModel(nn.Module):
    """One backbone for several tasks, each with its own encoding, pooling and head, and modules if it has any.

    A batch of one task gives the heads and modules of the others no gradient, so a step leaves them bit for bit as
    they are: a gradient of zero would not, with weight decay and momentum. Processes that train together have to look
    for the parameters that get none (``find_unused_parameters``).
    """

    def __init__(self, models: Mapping[str, TransferModel]) -> None:
        super().__init__()
        self.models = nn.ModuleList(models.values())
        self._each = dict(models)

    def of(self, task: str) -> TransferModel:
        return self._each[task]

    def forward(self, task: str, **inputs: Any) -> Tensor:
        """Outputs of the head of ``task``, (B, outputs); ``inputs`` as :class:`TransferModel` reads them."""
        outputs: Tensor = self._each[task](**inputs)
        return outputs


def backbone_inputs(input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None) -> dict[str, Tensor]:
    """What the backbone reads; not every family knows token types."""
    types = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
    return {"input_ids": input_ids, "attention_mask": attention_mask, **types}
