"""What tests of adapted models share: their outputs, their trainable parameters, and weights that matter."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from pipeline.methods.registry import METHODS
from pipeline.methods.saved import SavedModules
from pipeline.settings.recipe import Recipe

IDS = torch.randint(5, 20, (3, 9), generator=torch.Generator().manual_seed(0))


def hidden(encoder: PreTrainedModel) -> Tensor:
    encoder.eval()
    with torch.no_grad():
        return encoder(input_ids=IDS, attention_mask=torch.ones_like(IDS)).last_hidden_state


def trainable(encoder: nn.Module) -> int:
    return sum(parameter.numel() for parameter in encoder.parameters() if parameter.requires_grad)


def add_adapter(encoder: PreTrainedModel, name: str, kind: Any, bottleneck: int, drop: Sequence[int] = ()) -> None:
    METHODS[kind].add(encoder, [name], Recipe(adapter=kind, bottleneck=bottleneck, drop_layers=tuple(drop)))


def save_adapter(encoder: PreTrainedModel, name: str, folder: Path) -> None:
    METHODS["houlsby"].save(encoder, name, folder)


def saved_modules(task: str, folder: Path, **values: Any) -> SavedModules:
    """What a folder holds, by a recipe with a bottleneck of 8 and ``values``."""
    return SavedModules(task, Recipe.parse({"bottleneck": 8, **values}, "test"), folder)


def randomise(encoder: nn.Module, *parts: str, seed: int = 0, scale: float = 0.3) -> None:
    """Give the tensors whose name holds all ``parts`` values large enough to matter."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in encoder.named_parameters():
            if all(part in name for part in parts):
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)
