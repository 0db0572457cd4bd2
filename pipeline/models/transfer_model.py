"""TransferModel: backbone, pooling and head as one module, for single texts, cross-encoded and siamese pairs.

Models can share a backbone or its lower layers and run together (JointModel) or in turn (MultitaskModel).
"""

from collections.abc import Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pipeline.data.batches import padding_worth_a_pass
from pipeline.data.tasks import Encoding, Pooling
from pipeline.models.layout import frozen_depth, frozen_parts, is_frozen, layers_of, lower_states, upper_states
from pipeline.models.switching import activate
from pipeline.models.unpadding import Packed, as_packed, can_unpad, packed_inputs


def pool(hidden: Tensor, mask: Tensor, pooling: Pooling, encoder: Any = None) -> Tensor:
    """Sentence vectors (B, d) from hidden states (B, T, d): the first token, the output of the ``encoder``'s pooler, or
    the mean over unmasked tokens."""
    if pooling == "pooler":
        return encoder.pooler(hidden)
    if pooling == "cls":
        return hidden[:, 0]
    weights = mask.unsqueeze(-1).to(hidden.dtype)  # (B, T, 1)
    return (hidden * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1)


class TransferModel(nn.Module):
    """``head(pool(backbone(input)))``.

    A siamese batch of B pairs has 2B inputs, first sentences before second ones; or each distinct sentence once, and
    ``pairs`` to say where it belongs. The frozen prefix stays in evaluation mode (:mod:`layout`). If several tasks have
    modules in the backbone, those of ``task`` are activated. With a ``second`` encoder, frozen or trained, the head
    reads the concatenated vectors of both (Hayes 2024, "static + finetune" and "multi + triple").
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
        # Layer-wise learning rates find it by this name.
        self.second = nn.ModuleDict({"backbone": second} if second is not None else {})
        self.head = head
        self.encoding = encoding
        self.pooling = pooling
        self.task = task
        self._can_unpad = False

    @property
    def encoders(self) -> tuple[nn.Module, ...]:
        """The encoder, or both."""
        return (self.backbone, *self.second.values())

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        if mode:  # Checked here, not for each batch: it visits all modules.
            self._can_unpad = self.unpads(torch.device("cpu"))
        for encoder in self.encoders:
            for part in frozen_parts(encoder):
                part.eval()
        return self

    @torch.no_grad()
    def prefix_output(self, inputs: dict[str, Tensor]) -> Tensor:
        """Output of the frozen prefix: states (B, T, d), or vectors (B, d) if the whole backbone is frozen."""
        if is_frozen(self.backbone):
            return self.encode(**inputs)
        return lower_states(self.backbone, frozen_depth(self.backbone), inputs)

    def encode(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        token_type_ids: Tensor | None = None,
        known: Tensor | None = None,
        absent: Tensor | None = None,
    ) -> Tensor:
        """Sentence vectors, (B, d) or with two encoders (B, 2d), of inputs (B, T).

        ``known`` is the cached :meth:`prefix_output`, if any; inputs numbered ``absent`` are not in the cache.
        """
        inputs = backbone_inputs(input_ids, attention_mask, token_type_ids)
        if self.task is not None:
            activate(self.backbone, self.task)
        if known is None:
            vectors = [pool(self._hidden(e, inputs), attention_mask, self.pooling, e) for e in self.encoders]
            return vectors[0] if len(vectors) == 1 else torch.cat(vectors, dim=-1)
        if absent is not None:
            computed = self.prefix_output({name: tensor[absent] for name, tensor in inputs.items()})
            known = known.index_copy(0, absent, computed.to(known.dtype))
        if known.ndim == 2:
            return known
        hidden = upper_states(self.backbone, frozen_depth(self.backbone), known, inputs)
        return pool(hidden, attention_mask, self.pooling, self.backbone)

    def unpads(self, device: torch.device) -> bool:
        """Whether training on ``device`` computes batches without their padding (:mod:`unpadding`).

        It does not on a GPU, where a pass over a few more tokens takes the same time, or above frozen layers, whose
        cached outputs are padded: dropout would draw other masks if the cache had no room for a batch.
        """
        return device.type == "cpu" and not frozen_depth(self.backbone) and all(map(can_unpad, self.encoders))

    def most_padding(self, device: torch.device, precision: str) -> int | None:
        """Training cuts a batch in two if it has more padding tokens than this; None: never, as when it unpads."""
        return None if self.unpads(device) else padding_worth_a_pass(device, precision)

    def _hidden(self, encoder: Any, inputs: dict[str, Tensor]) -> Tensor:
        """The last hidden states (B, T, d), or (B, 1, d) of a lean encoder."""
        mask = inputs["attention_mask"]
        # Where nothing trains, batches are sorted by length and have little padding.
        trains = self.training and torch.is_grad_enabled()
        if not (trains and self._can_unpad and mask.device.type == "cpu"):
            return encoder(**inputs).last_hidden_state
        packed = Packed.of(mask)
        with as_packed(packed):
            outputs = encoder(**packed_inputs(encoder, packed, inputs["input_ids"], inputs.get("token_type_ids")))
        return packed.padded(outputs.last_hidden_state)

    def decide(self, vectors: Tensor, pairs: Tensor | None = None) -> Tensor:
        """Outputs of the head, (B, outputs), in fp32 whatever the backbone computes in.

        ``vectors`` has one vector per example, or 2B for siamese pairs, first sentences before second ones. With
        ``pairs`` (2B,), the place of each sentence in ``vectors``, a repeated sentence is encoded once.
        """
        vectors = vectors.float()
        with torch.autocast(vectors.device.type, enabled=False):
            if self.encoding == "siamese":
                # An embedding adds the gradients of a repeated sentence in a fixed order; plain indexing on a CPU adds
                # them in the order of its threads.
                both = vectors if pairs is None else F.embedding(pairs, vectors)
                return self.head(*both.chunk(2))
            return self.head(vectors)

    def forward(self, *inputs: Tensor, pairs: Tensor | None = None, **named: Tensor) -> Tensor:
        """Outputs of the head, (B, outputs); arguments as for :meth:`encode` and :meth:`decide`."""
        return self.decide(self.encode(*inputs, **named), pairs)


class JointModel(nn.Module):
    """N tasks' models over one backbone that gives N streams (:func:`parallel_adapters`): one pass serves all.

    Each task has its own pooling and head; outputs are concatenated in the order of ``models``. With ``top``, the
    models are instead over encoders of :func:`split_encoder`, which share all but as many layers; with 0, only the
    heads are task-specific.
    """

    def __init__(self, models: Sequence[TransferModel], top: int | None = None) -> None:
        super().__init__()
        self.models = nn.ModuleList(models)
        self._each = tuple(models)
        self._top = top

    def encode(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        """Sentence vectors (B, N, d) of inputs (B, T)."""
        streams = self._streams(backbone_inputs(input_ids, attention_mask, token_type_ids))
        models = zip(self._each, streams, strict=True)
        vectors = [pool(stream, attention_mask, model.pooling, model.backbone) for model, stream in models]
        return torch.stack(vectors, dim=1)

    def _streams(self, inputs: dict[str, Tensor]) -> Sequence[Tensor]:
        """The last hidden states (B, T, d) of each task."""
        first = self._each[0].backbone
        if self._top is None:
            return first(**inputs).last_hidden_state.chunk(len(self._each))  # of (N B, T, d)
        shared = len(layers_of(first)) - self._top
        states = lower_states(first, shared, inputs)
        return [upper_states(model.backbone, shared, states, inputs) for model in self._each]

    def decide(self, vectors: Tensor, pairs: Tensor | None = None) -> Tensor:
        """Outputs of all heads, (B, sum of outputs), of vectors (B, N, d); ``pairs`` as in :class:`TransferModel`."""
        streams = zip(self._each, vectors.unbind(dim=1), strict=True)
        return torch.cat([model.decide(stream, pairs) for model, stream in streams], dim=-1)

    def forward(self, *inputs: Tensor, pairs: Tensor | None = None, **named: Tensor) -> Tensor:
        return self.decide(self.encode(*inputs, **named), pairs)


class MultitaskModel(nn.Module):
    """One backbone for several tasks, each with its own encoding, pooling, head, and modules if it has any.

    A batch of one task gives the parameters of the others no gradient, so a step leaves them bit for bit unchanged. A
    gradient of zero would not, with weight decay and momentum. Data-parallel training therefore needs
    ``find_unused_parameters``.
    """

    def __init__(self, models: Mapping[str, TransferModel]) -> None:
        super().__init__()
        self.models = nn.ModuleList(models.values())
        self._each = dict(models)

    def of(self, task: str) -> TransferModel:
        return self._each[task]

    def forward(self, task: str, **inputs: Any) -> Tensor:
        """Outputs of the head of ``task``, (B, outputs); ``inputs`` as :class:`TransferModel` reads them."""
        return self._each[task](**inputs)


def backbone_inputs(input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None) -> dict[str, Tensor]:
    """The backbone's inputs; not every family has token types."""
    types = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
    return {"input_ids": input_ids, "attention_mask": attention_mask, **types}
