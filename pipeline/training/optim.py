"""AdamW's parameter groups and the learning-rate schedule."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from torch import nn


def parameter_groups(
    model: nn.Module, weight_decay: float, without_decay: Container[str] = frozenset()
) -> list[dict[str, Any]]:
    """Trainable parameters in two groups: matrices with decay; vectors and ``without_decay`` without.

    Frozen parameters are in no group, so the optimiser keeps no state for them.
    """
    decayed: list[nn.Parameter] = []
    free: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            (free if parameter.ndim < 2 or name in without_decay else decayed).append(parameter)
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": free, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def linear_schedule(step: int, total: int, warmup_ratio: float) -> float:
    """Factor on the peak learning rate at ``step`` (from 0) of ``total``: linear up, then linear down to zero.

    A pure function of the step, so a resumed run needs no scheduler state.
    """
    warmup = round(total * warmup_ratio)
    if step < warmup:
        return (step + 1) / warmup
    return (total - step) / max(1, total - warmup)
