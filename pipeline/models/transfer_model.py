"""TransferModel: backbone, pooling and head as one module, for single texts, cross-encoded and siamese pairs.

Models can share a backbone or its lower layers and run together (JointModel) or in turn (MultitaskModel). What a frozen
prefix computes for the inputs of a split is cached (PrefixCache), instead of computed in every epoch.

Heads, with features f of one vector u (B, d) or of a pair u, v, and optional dropout on vectors and features:

| kind | outputs | features |
| --- | --- | --- |
| linear | ``W f + b`` | ``[u; v]`` |
| mlp (Liu & Shen 2023) | ``W2 relu(W1 f + b1) + b2``, with a hidden layer of width d | ``[u; v]`` |
| difference (Reimers & Gurevych 2019, section 3) | as linear | ``[u; v; |u - v|]`` |
| difference-mlp (Liu & Shen 2023) | as mlp | ``[u; v; |u - v|]`` |
| comparison | as linear | ``[u; v; |u - v|; u v; cos(u, v)]`` |
| cosine (Xu 2024, figures 1 and 2) | ``cos(u, v)``, unclamped, without weights | |
"""

from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Self

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.nn import functional as F

from pipeline.data.batches import (
    BACKBONE_INPUTS,
    Batch,
    collate,
    evaluation_order,
    padding_worth_a_pass,
    sentences_of,
)
from pipeline.data.tasks import Encoding, HeadKind, Pooling
from pipeline.data.tokens import TokenisedSplit
from pipeline.models.layout import (
    activate,
    frozen_depth,
    frozen_parts,
    is_frozen,
    layers_of,
    lower_states,
    upper_states,
)
from pipeline.models.lean import can_unpad, unpadded_states


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
        second: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        # Layer-wise learning rates find it by this name.
        self.second = nn.ModuleDict({"backbone": second} if second is not None else {})
        self.head = head
        self.encoding = encoding
        self.pooling = pooling
        self.task: str | None = None
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
        """Whether training on ``device`` computes batches without their padding (:mod:`lean`).

        It does not on a GPU, where a pass over a few more tokens takes the same time, or above frozen layers, whose
        cached outputs are padded: dropout would draw other masks if the cache had no room for a batch.
        """
        return device.type == "cpu" and not frozen_depth(self.backbone) and all(map(can_unpad, self.encoders))

    def most_padding(self, device: torch.device, precision: str) -> int | None:
        """Training cuts a batch in two if it has more padding tokens than this; None: never, as when it unpads."""
        return None if self.unpads(device) else padding_worth_a_pass(device, precision)

    def _hidden(self, encoder: Any, inputs: dict[str, Tensor]) -> Tensor:
        """The last hidden states (B, T, d), or (B, 1, d) of a lean encoder."""
        # Where nothing trains, batches are sorted by length and have little padding.
        trains = self.training and torch.is_grad_enabled()
        if not (trains and self._can_unpad and inputs["attention_mask"].device.type == "cpu"):
            return encoder(**inputs).last_hidden_state
        return unpadded_states(encoder, inputs)

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
        inputs, first = backbone_inputs(input_ids, attention_mask, token_type_ids), self._each[0].backbone
        streams: Sequence[Tensor]  # the last hidden states (B, T, d) of each task
        if self._top is None:
            streams = first(**inputs).last_hidden_state.chunk(len(self._each))  # of (N B, T, d)
        else:
            shared = len(layers_of(first)) - self._top
            states = lower_states(first, shared, inputs)
            streams = [upper_states(model.backbone, shared, states, inputs) for model in self._each]
        models = zip(self._each, streams, strict=True)
        vectors = [pool(stream, attention_mask, model.pooling, model.backbone) for model, stream in models]
        return torch.stack(vectors, dim=1)

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
    of_pairs = {"difference": (pair_features, 3 * width), "comparison": (compared, 4 * width + 1)}
    features, inputs = of_pairs.get(kind.removesuffix("-mlp"), (joined, vectors * width))
    hidden = width if kind.endswith("mlp") else 0
    return Head(features, inputs, outputs, dropout, vector_dropout, hidden, tuned_threshold)


class PrefixCache:
    """Outputs of :meth:`TransferModel.prefix_output` for the inputs of one split, at most ``max_bytes`` of numbers.

    The index of the inputs takes about 150 more bytes per input.

    All outputs are computed in one pass, in batches of similar length, when the first is needed. The shortest inputs
    are kept, so the choice depends only on the split and the bound. A resumed run with the same bound therefore reads
    the same bits as an uninterrupted one, although the last bits of a product may depend on the shape of its batch.
    Every process keeps the whole cache, because it sees other rows every epoch.
    """

    def __init__(
        self,
        model: TransferModel,
        split: TokenisedSplit,
        *,
        max_bytes: float,
        batch_size: int,
        pad_token_id: int,
        accelerator: Accelerator,
    ) -> None:
        self._model, self._accelerator = model, accelerator
        self._batch_size, self._pad_token_id = batch_size, pad_token_id
        self._inputs = split if split.b is None else sentences_of(split, np.arange(len(split)))[0]
        backbone: Any = model.backbone
        self._is_whole, lengths = is_frozen(backbone), self._inputs.lengths
        order = np.argsort(lengths, kind="stable")
        vectors = np.ones_like(order) if self._is_whole else lengths[order]
        taken = np.cumsum(vectors) * backbone.config.hidden_size * 4  # bytes of an fp32 number
        count = int(np.searchsorted(taken, max_bytes, side="right")) if frozen_depth(backbone) else 0
        self._kept, self.bytes = order[:count], int(taken[count - 1]) if count else 0
        # One tensor for all inputs: a tensor object takes as much memory as a sentence vector.
        self._vectors: Tensor | None = None  # of all inputs, or of all their tokens, concatenated
        self._firsts: dict[bytes, int] = {}  # where the vectors of an input begin

    def extend(self, batch: Batch) -> Batch:
        """``batch`` with ``known``, the cached outputs of its inputs, for :meth:`TransferModel.encode`.

        ``absent`` numbers the inputs that are not cached; it is left out if there are none. A batch without any cached
        input is returned unchanged.
        """
        if not len(self._kept):
            return batch
        vectors = self._filled() if self._vectors is None else self._vectors
        firsts = [self._firsts.get(key) for key in _keys(batch)]
        absent = [number for number, first in enumerate(firsts) if first is None]
        if len(absent) == len(firsts):
            return batch
        width = 1 if self._is_whole else batch["input_ids"].shape[1]
        known = vectors.new_zeros(len(firsts), width, vectors.shape[1])
        for place, first, length in zip(known, firsts, self._lengths_in(batch), strict=True):
            if first is not None:
                place[:length] = vectors[first : first + length]
        known = known.squeeze(1) if self._is_whole else known
        return {**batch, "known": known, **({"absent": torch.tensor(absent)} if absent else {})}

    def _lengths_in(self, batch: Batch) -> list[int]:
        """The number of vectors of each input."""
        mask = batch["attention_mask"]
        return [1] * len(mask) if self._is_whole else mask.sum(dim=1).tolist()

    def _filled(self) -> Tensor:
        """Compute the vectors of all inputs that are kept."""
        lengths, end = self._inputs.lengths, 0
        total = len(self._kept) if self._is_whole else int(lengths[self._kept].sum())
        for rows in evaluation_order(lengths[self._kept], self._batch_size):
            batch = collate(self._inputs, self._kept[rows], self._pad_token_id)
            inputs = {name: batch[name].to(self._accelerator.device) for name in BACKBONE_INPUTS if name in batch}
            # Mixed precision belongs to the model's `forward`, which is not called here.
            with self._accelerator.autocast():
                outputs = self._model.prefix_output(inputs).cpu()
            if self._vectors is None:
                self._vectors = outputs.new_empty(total, outputs.shape[-1])
            for key, output, length in zip(_keys(batch), outputs, self._lengths_in(batch), strict=True):
                self._vectors[end : end + length] = output[:length] if output.ndim == 2 else output
                self._firsts[key] = end
                end += length
        assert self._vectors is not None
        return self._vectors


def _keys(batch: Batch) -> list[bytes]:
    """The identity of each input: a digest of its tokens and token types without padding."""
    lengths = batch["attention_mask"].sum(dim=1).tolist()
    parts = [batch[name].int().numpy() for name in ("input_ids", "token_type_ids") if name in batch]
    inputs = (b"".join(part[row, :length].tobytes() for part in parts) for row, length in enumerate(lengths))
    return [blake2b(tokens, digest_size=16).digest() for tokens in inputs]
