"""Merge the weights of several adapters into one adapter: by their mean, or by TIES.

The adapters of a study that share a seed start from the same weights, whatever their tasks. So unit i of one matches
unit i of another, and an adapter's difference from that start is its task's update: the *task vector* of Yadav et al.
(2023), who subtract the pretrained model. Adapters of different seeds have their units in different orders, so their
mean is meaningless.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from pipeline.methods.saved import SavedModules, begin_as
from pipeline.models.layout import module_parameter_names
from pipeline.settings.parts import Merge


def ties(vectors: Tensor, density: float) -> Tensor:
    """Merge task vectors (N, P) into one (P) as in Yadav et al. (2023), algorithm 1, without its final scaling.

    Trim: keep the share ``density`` of each vector's numbers, those of largest magnitude. Elect: take the sign of the
    sum of the kept numbers. Disjoint mean: average the kept numbers of that sign; zero if there are none.
    """
    kept = max(1, round(density * vectors.shape[1]))
    largest = vectors.abs().topk(kept, dim=1).indices
    trimmed = torch.zeros_like(vectors).scatter(1, largest, vectors.gather(1, largest))
    elected = trimmed.sum(0).sign()
    agrees = (trimmed.sign() == elected) & (trimmed != 0)
    return (trimmed * agrees).sum(0) / agrees.sum(0).clamp(min=1)


def merge(adapters: Tensor, start: Tensor, settings: Merge) -> Tensor:
    """Merge N adapters (N, P) that were all initialised to ``start`` (P) into one (P).

    "mean" is Chronopoulou et al. (2023) with equal weights, AdapterHub's ``average_adapter``.
    """
    if settings.rule == "mean":
        return adapters.mean(0)
    return start + settings.scale * ties(adapters - start, settings.density)


@torch.no_grad()
def merge_into(backbone: PreTrainedModel, name: str, adapters: Sequence[SavedModules], settings: Merge) -> None:
    """Merge saved adapters into AdapterHub's adapter ``name`` of the same shape, fresh in ``backbone``."""
    added = module_parameter_names(backbone)
    parameters: list[nn.Parameter] = [p for key, p in backbone.named_parameters() if key in added]

    def vector() -> Tensor:
        return torch.cat([parameter.detach().flatten() for parameter in parameters])

    start, trained = vector(), []
    for adapter in adapters:
        begin_as(backbone, name, adapter)
        trained.append(vector())
    merged = merge(torch.stack(trained), start, settings)
    for parameter, part in zip(parameters, merged.split([p.numel() for p in parameters]), strict=True):
        parameter.copy_(part.view_as(parameter))
