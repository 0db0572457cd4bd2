"""A trained model as one function from token ids to probabilities or scores, which an exporter can trace."""

import torch
from torch import Tensor, nn
from torch.export import Dim

from pipeline.data.batches import BACKBONE_INPUTS
from pipeline.data.tokens import head_tokens
from pipeline.methods.fusion import use_fusion_implementation
from pipeline.training.objectives import objective_of
from stages.export.trained import Trained


class Answering(nn.Module):
    """The head's ``outputs`` (B, k) and the answer, probabilities (B, C) or scores (B,), for B rows.

    Its arguments are the backbone's, all (B, T), for each input of a row: siamese pairs give those of the first texts,
    then those of the second, with possibly another T. If the model keeps the beginning and the end of a long text, it
    takes texts of any length and cuts them.
    """

    def __init__(self, trained: Trained) -> None:
        super().__init__()
        self.model = trained.model
        self.inputs = len(trained.inputs)
        self.siamese = trained.recipe.encoding == "siamese" and trained.task.is_pair
        self.most = trained.recipe.max_length if trained.cuts_middle else None
        self.read = objective_of(trained.task, trained.recipe).read
        # The same function with fewer, larger matrix products.
        use_fusion_implementation(trained.model.backbone, "fast")

    def forward(self, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        size = len(tensors) // self.inputs
        vectors = [self._encode(*tensors[start : start + size]) for start in range(0, len(tensors), size)]
        if self.siamese:
            outputs = self.model.head(*vectors)
        else:
            each = [self.model.decide(vector) for vector in vectors]
            outputs = each[0] if len(each) == 1 else torch.stack(each).mean(dim=0)
        return outputs, self.read(outputs)

    def _encode(self, *tensors: Tensor) -> Tensor:
        if self.most is not None:
            tensors = cut_middle(tensors, self.most)
        return self.model.encode(**dict(zip(BACKBONE_INPUTS, tensors, strict=False))).float()


def cut_middle(tensors: tuple[Tensor, ...], most: int) -> tuple[Tensor, ...]:
    """Cut ids, mask and token types (B, T) to a text's first and last tokens, ``most`` in all.

    Cuts like :func:`pipeline.data.tokens.tokenise`; padding is on the right.
    """
    lengths = tensors[1].sum(dim=1, keepdim=True)
    positions = torch.arange(tensors[0].shape[1], device=tensors[0].device)[:most].unsqueeze(0)
    later = (lengths - most).clamp(min=0) * (positions >= head_tokens(most))
    return tuple(tensor.gather(1, positions + later) for tensor in tensors)


def names_of(trained: Trained) -> list[str]:
    """The argument names of :class:`Answering`: ``input_ids``, or with several inputs ``input_ids_1`` and so on."""
    kinds = BACKBONE_INPUTS if trained.tokenizer.token_types else BACKBONE_INPUTS[:2]
    several = len(trained.inputs) > 1
    return [f"{kind}_{number}" if several else kind for number in range(1, len(trained.inputs) + 1) for kind in kinds]


def example_of(trained: Trained) -> tuple[Tensor, ...]:
    """Arguments for tracing. Tracing would take sizes of 0 and 1 for constants."""
    return tuple(torch.ones(3, min(7, trained.backbone.max_length), dtype=torch.long) for _ in names_of(trained))


def sizes_of(trained: Trained) -> tuple[dict[int, Dim], ...]:
    """The dynamic sizes of the arguments: rows, and the length of each input."""
    rows, names = Dim("rows"), names_of(trained)
    lengths = [Dim(name, max=trained.backbone.max_length) for name in ("length", "length_2")]
    kinds = len(names) // len(trained.inputs)
    return tuple({0: rows, 1: lengths[number // kinds]} for number in range(len(names)))
