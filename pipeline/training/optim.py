"""AdamW's parameter groups, the peak learning rate of each parameter, and schedules."""

import math
from collections.abc import Collection, Container, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pipeline.models.layout import BASE
from pipeline.models.tensors import layer_of
from pipeline.settings.recipe import AdamCorrection, Recipe, Schedule


def parameter_groups(
    model: nn.Module, rates: Mapping[str, float], weight_decay: float, without_decay: Container[str] = frozenset()
) -> list[dict[str, Any]]:
    """Trainable parameters grouped by weight decay (matrices decay, vectors do not) and peak rate, ``initial_lr``.

    Frozen parameters are in no group, so the optimiser keeps no state for them.

    Args:
        rates: peak rate of every trainable parameter by name.
        without_decay: names of matrices exempt from weight decay.
    """
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, rate in rates.items():
        parameter = model.get_parameter(name)
        decay = 0.0 if parameter.ndim < 2 or name in without_decay else weight_decay
        groups.setdefault((rate, decay), []).append(parameter)
    return [
        {"params": parameters, "weight_decay": decay, "lr": rate, "initial_lr": rate}
        for (rate, decay), parameters in groups.items()
    ]


def peak_rates(model: nn.Module, recipe: Recipe, pretrained: Collection[str] | None = None) -> dict[str, float]:
    """The peak learning rate of every trainable parameter by name.

    - heads: ``head_learning_rate``
    - pretrained layer l of L (l from 1): ``backbone_learning_rate * layer_decay^(L - l)`` (Sun et al. 2019, section
      5.3.4; Hayes 2024 counts layers from 0 and writes 11 - l)
    - pretrained, below the layers: ``embedding_learning_rate``, or the rate of a layer below the lowest
    - pretrained, above the layers, such as a pooler: ``backbone_learning_rate``
    - gates of a gated fusion: ``gate_learning_rate``; other modules added to the encoder: ``learning_rate``

    Args:
        model: its encoders are called ``backbone`` and its heads ``head``, at any depth.
        pretrained: names of the pretrained parameters in the encoder; None: all.
    """
    assert recipe.learning_rate is not None
    depth = 1 + max(
        (layer for name, _ in model.named_parameters() if (layer := layer_of(name)) is not None), default=-1
    )
    backbone = recipe.pretrained.learning_rate or recipe.learning_rate
    embeddings = recipe.pretrained.embedding_learning_rate or backbone * recipe.pretrained.layer_decay**depth
    below = tuple(f"{path}." for path in BASE)
    rates = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        inner, layer = _name_in_encoder(name), layer_of(name)
        if not inner:
            rates[name] = (recipe.head_learning_rate if ".head." in f".{name}" else None) or recipe.learning_rate
        elif ".adapter_fusion_layer." in name:
            rates[name] = recipe.gated.learning_rate or recipe.learning_rate
        elif not is_pretrained(name, pretrained):
            rates[name] = recipe.learning_rate
        elif layer is not None:
            rates[name] = backbone * recipe.pretrained.layer_decay ** (depth - 1 - layer)
        else:
            rates[name] = embeddings if inner.startswith(below) else backbone
    return rates


def is_pretrained(name: str, pretrained: Collection[str] | None) -> bool:
    """Whether a parameter was pretrained, by its name in the model (see :func:`peak_rates`)."""
    inner = _name_in_encoder(name)
    return bool(inner) and (pretrained is None or inner in pretrained)


def _name_in_encoder(name: str) -> str:
    """The name of a parameter within its encoder; empty if it is not in one."""
    return f".{name}".partition(".backbone.")[2]


class StepCorrectedAdamW(torch.optim.AdamW):
    """AdamW with the bias correction in the step size (Kingma & Ba 2015, end of section 2), as Hayes 2024 used it.

    With m and v the means of the gradient and of its square, in place of PyTorch's

        theta <- (1 - lr wd) theta - lr (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)

    a step is

        theta <- (1 - lr wd) (theta - lr sqrt(1 - beta2^t) / (1 - beta1^t) m / (sqrt(v) + eps))

    which is PyTorch's step with ``eps / sqrt(1 - beta2^t)`` and decay last; t counts the steps of each parameter.
    """

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        whole, alike = self.param_groups, []
        for group in whole:
            by_step: dict[float, list[Tensor]] = {}
            updated = [parameter for parameter in group["params"] if parameter.grad is not None]
            for parameter, taken in zip(updated, self._steps(updated), strict=True):
                by_step.setdefault(taken, []).append(parameter)
            for taken, parameters in by_step.items():
                epsilon = group["eps"] / math.sqrt(1 - group["betas"][1] ** (taken + 1))
                # PyTorch would decay before the step.
                settings = {"params": parameters, "eps": epsilon, "weight_decay": 0.0}
                alike.append((taken, {**group, **settings}, group["weight_decay"]))
        self.param_groups = [group for _, group, _ in alike]
        try:
            super().step()
        finally:
            self.param_groups = whole
        for taken, group, decay in alike:
            decayed = group["params"] if decay else []
            for parameter, now in zip(decayed, self._steps(decayed), strict=True):
                if now > taken:  # not where fp16 overflowed
                    parameter.mul_(1 - group["lr"] * decay)

    def _steps(self, parameters: Sequence[Tensor]) -> list[float]:
        """The number of steps that each parameter has taken, read at once so that the host waits for a GPU once."""
        steps = {parameter: state["step"] for parameter in parameters if (state := self.state.get(parameter))}
        taken = dict(zip(steps, torch.stack([*steps.values()]).tolist(), strict=True)) if steps else {}
        return [taken.get(parameter, 0.0) for parameter in parameters]


OPTIMIZERS: dict[AdamCorrection, type[torch.optim.AdamW]] = {"moments": torch.optim.AdamW, "step": StepCorrectedAdamW}


def rate_factor(schedule: Schedule, step: int, total: int, warmup_ratio: float) -> float:
    """Factor on the peak learning rate at ``step`` (from 0) of ``total``.

    It rises linearly to 1 in the warm-up, W steps. From there on, "linear" falls linearly to zero, "constant" stays at
    1, and "noam" is ``sqrt(W / s)`` at step s = ``step`` + 1, which does not reach zero (Vaswani et al. 2017, eq. 3).
    A pure function of the step, so a resumed run needs no scheduler state.
    """
    warmup = round(total * warmup_ratio)
    if step < warmup:
        return (step + 1) / warmup
    if schedule == "noam":
        return math.sqrt(max(1, warmup) / (step + 1))
    return (total - step) / max(1, total - warmup) if schedule == "linear" else 1.0
