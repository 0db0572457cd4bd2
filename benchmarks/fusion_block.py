"""One fusion site, forward and backward: AdapterHub's ``Fuse`` against this project's implementation."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import adapters
import torch
from adapters import DoubleSeqBnConfig
from adapters.composition import Fuse
from torch import Tensor
from transformers import BertModel

from pipeline.methods.houlsby import reduction_factor

from .backbones import Shape
from .memory import saved_mb
from .report import Report
from .setting import Setting
from .timing import Row, columns, interleave, milliseconds

if TYPE_CHECKING:
    from pipeline.settings.parts import FusionImplementation

_PEERS: dict[str, FusionImplementation] = {"stock": "stock", "ours": "fast"}


def run(setting: Setting) -> Report:
    widths, counts, batch = ((32,), (2, 4), (2, 8)) if setting.quick else ((384, 768), (2, 4, 8, 16), (32, 128))
    table = [_row(setting, width, count, batch) for width in widths for count in counts]
    tokens = batch[0] * batch[1]
    return Report(
        (
            f"The FFN's site of one layer, {tokens:,} tokens, fp32, frozen Houlsby adapters of bottleneck"
            f" {setting.bottleneck}, dropout on, forward and backward to the fusion's weights and the site's inputs; MB"
            " kept for the backward pass.",
            "Medians (lowest to highest) of rounds in which the peers ran in turn.",
        ),
        (table,),
    )


def _row(setting: Setting, width: int, count: int, batch: tuple[int, int]) -> Row:
    models = {name: _model(setting, width, count, kind) for name, kind in _PEERS.items()}
    forwards = {name: _forward(model, (*batch, width), setting.device) for name, model in models.items()}
    gradient = torch.randn(*batch, width, device=setting.device)
    found = interleave({name: milliseconds(_backward(f, gradient)) for name, f in forwards.items()}, setting.repeats)
    kept = {name: saved_mb(models[name], forward) for name, forward in forwards.items()}
    return {
        "d": width,
        "N": count,
        **columns(found, "ms"),
        **{f"{name}, MB": size for name, size in kept.items()},
        "MB, stock / ours": kept["stock"] / kept["ours"],
    }


def _model(setting: Setting, width: int, count: int, implementation: FusionImplementation) -> BertModel:
    """A BERT of one layer with fusion after its FFN; the same weights for both implementations."""
    from pipeline.methods.registry import use_fusion_implementation

    torch.manual_seed(0)
    shape = Shape(width, 1, max(1, width // 64), vocabulary=8)
    model = BertModel(shape.config(), add_pooling_layer=False)
    adapters.init(model)
    factor = reduction_factor(width, setting.bottleneck)
    for number in range(count):
        config = DoubleSeqBnConfig(reduction_factor=factor, non_linearity="gelu", init_weights="houlsby")
        model.add_adapter(f"source{number}", config=config)
    setup = Fuse(*(f"source{number}" for number in range(count)))
    model.add_adapter_fusion(setup)
    model.train_adapter_fusion(setup)
    model.to(setting.device).train()
    use_fusion_implementation(model, implementation)
    return model


def _forward(model: BertModel, shape: tuple[int, int, int], device: str) -> Callable[[], Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden, residual = (torch.randn(shape, generator=generator).to(device).requires_grad_() for _ in range(2))
    site: Any = model.encoder.layer[0].output
    return lambda: site.bottleneck_layer_forward(hidden, residual, site.LayerNorm)


def _backward(forward: Callable[[], Tensor], gradient: Tensor) -> Callable[[], None]:
    # Gradients accumulate over calls, as in training between two steps.
    return lambda: forward().backward(gradient)
