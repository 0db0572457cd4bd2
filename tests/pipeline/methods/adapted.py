"""What tests of adapted models share: their outputs, their trainable parameters, and weights that matter."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import adapters
import torch
from torch import Tensor, nn
from transformers import BertModel, PreTrainedModel

from pipeline.methods.anchored import AnchoredFusion
from pipeline.methods.registry import METHODS, add_fusion, save_fusion
from pipeline.methods.saved import SavedModules
from pipeline.models.backbone import Backbone
from pipeline.settings.recipe import Recipe

IDS = torch.randint(5, 20, (3, 9), generator=torch.Generator().manual_seed(0))
MASK = torch.ones_like(IDS)
MASK[1, 5:] = 0
"""Of ``IDS``, with padding in the second of three inputs."""
WHOLE = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}
PADDED = {
    "input_ids": torch.randint(5, 20, (4, 9), generator=torch.Generator().manual_seed(0)),
    "attention_mask": (torch.arange(9) < torch.tensor([[9], [6], [3], [9]])).long(),
}
"""Four inputs of 27 tokens in all."""


def hidden(encoder: PreTrainedModel, inputs: Mapping[str, Tensor] = WHOLE) -> Tensor:
    """Its last hidden states, (B, T, d), without dropout."""
    encoder.eval()
    with torch.no_grad():
        return encoder(**inputs).last_hidden_state


def uneven_sum(values: Tensor) -> Tensor:
    """A loss to which every number contributes otherwise."""
    return (values * torch.linspace(-1, 1, values.numel(), dtype=values.dtype).view(values.shape)).sum()


def with_gradients(model: nn.Module, compute: Callable[[], Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    """What ``compute`` gives, and the gradients of :func:`uneven_sum` of it."""
    model.zero_grad()
    values = compute()
    uneven_sum(values).backward()
    return values.detach(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def trainable(encoder: nn.Module) -> int:
    return sum(parameter.numel() for parameter in encoder.parameters() if parameter.requires_grad)


def add_adapter(encoder: PreTrainedModel, name: str, kind: Any, bottleneck: int, drop: Sequence[int] = ()) -> None:
    METHODS[kind].add(encoder, [name], Recipe(adapter=kind, bottleneck=bottleneck, drop_layers=tuple(drop)))


def save_adapter(encoder: PreTrainedModel, name: str, folder: Path) -> None:
    METHODS["houlsby"].save(encoder, name, folder)


def save_sources(
    backbone: Backbone, names: Sequence[str], folder: Path, kind: str = "houlsby"
) -> dict[str, SavedModules]:
    """Adapters of width 8 with unlike random weights, each in a folder of its name."""
    for seed, name in enumerate(names):
        encoder = backbone.load()
        add_adapter(encoder, name, kind, 8)
        randomise(encoder, f"adapters.{name}", seed=seed)
        save_adapter(encoder, name, folder / name)
    return {name: saved_modules(name, folder / name, adapter=kind) for name in names}


def add_standard_fusion(
    encoder: PreTrainedModel, sources: Mapping[str, SavedModules], drop_layers: Sequence[int] = ()
) -> None:
    recipe = Recipe(trainable="fusion", fusion="standard", drop_layers=tuple(drop_layers))
    add_fusion(encoder, sources, recipe, next(iter(sources)))


def save_fused(encoder: PreTrainedModel, sources: Iterable[str], folder: Path) -> None:
    """Save a standard or an anchored fusion."""
    is_anchored = any(isinstance(module, AnchoredFusion) for module in encoder.modules())
    recipe = Recipe(trainable="fusion", fusion="anchored" if is_anchored else "standard")
    save_fusion(encoder, sources, SavedModules("films", recipe, folder))


def stock_states(backbone_folder: Path, adapter: Path) -> Tensor:
    """Hidden states by AdapterHub's own calls on its own model, from an adapter's folder alone."""
    model = BertModel.from_pretrained(backbone_folder, add_pooling_layer=False)
    adapters.init(model)
    model.load_adapter(str(adapter), use_safetensors=True, set_active=True)
    return hidden(model)


def saved_modules(task: str, folder: Path, **values: Any) -> SavedModules:
    """What a folder holds, by a recipe with a bottleneck of 8 and ``values``."""
    return SavedModules(task, Recipe.parse({"bottleneck": 8, **values}, "test"), folder)


def move(model: nn.Module, seed: int = 0, scale: float = 0.2) -> None:
    """Move all that trains, so that no part of it does nothing."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(scale * torch.randn(parameter.shape, generator=generator))


def randomise(encoder: nn.Module, *parts: str, seed: int = 0, scale: float = 0.3) -> None:
    """Give the tensors whose name holds all ``parts`` values large enough to matter."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in encoder.named_parameters():
            if all(part in name for part in parts):
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)
