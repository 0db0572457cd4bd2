"""Bottleneck adapters through AdapterHub (Houlsby et al. 2019; Pfeiffer et al. 2021 for the FFN-only variant).

Layers may be left without (AdapterDrop, Rücklé et al. 2021): those at the bottom earn least and cost most, because
the backward pass ends at the lowest adapter.

``A(h) = h + W_up gelu(W_down h + b_down) + b_up`` on the output of each sub-layer, before the residual and LayerNorm;
2md + d + m parameters a site, two sites a layer ("houlsby") or the one after the FFN ("pfeiffer").
"""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import adapters
from safetensors.torch import load_file
from torch import nn

from pipeline.errors import PipelineError
from pipeline.models.adaptation.switching import check_task_name

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Sites = Literal["houlsby", "pfeiffer"]
ADAPTER_FILE = "adapter.safetensors"


_LAYER = re.compile(r"\.layer\.(\d+)\.")


def add_adapter(
    backbone: PreTrainedModel, name: str, sites: Sites, bottleneck: int, drop_layers: Collection[int] = ()
) -> None:
    """Put a fresh adapter into ``backbone``, except in ``drop_layers``; leave it alone trainable and active.

    Raises:
        PipelineError: ``bottleneck`` is wider than the backbone.
    """
    width = backbone.config.hidden_size
    if bottleneck > width:
        raise PipelineError(f"bottleneck {bottleneck} is wider than the backbone ({width}): choose a smaller one")
    config_class = adapters.DoubleSeqBnConfig if sites == "houlsby" else adapters.SeqBnConfig
    adapters.init(backbone)
    check_task_name(name)
    config = config_class(
        reduction_factor=reduction_factor(width, bottleneck),
        non_linearity="gelu",
        init_weights="houlsby",
        leave_out=sorted(drop_layers),
    )
    backbone.add_adapter(name, config=config)
    backbone.train_adapter(name)


def reduction_factor(width: int, bottleneck: int) -> float:
    """The factor r for which AdapterHub's ``int(width // r)`` is ``bottleneck``, for any pair of the two.

    The exact quotient is off by one where floating point rounds it up (1 <= m <= d has such m for most d); half a
    unit more in the divisor then keeps the integer part.
    """
    exact = width / bottleneck
    return exact if int(width // exact) == bottleneck else width / (bottleneck + 0.5)


def train_layernorms(backbone: nn.Module, drop_layers: Collection[int] = ()) -> None:
    """Unfreeze the LayerNorms, as Houlsby et al. do; the artifact then needs them beside the adapter."""
    for name, module in backbone.named_modules():
        if isinstance(module, nn.LayerNorm) and has_adapter(f"{name}.", drop_layers):
            module.requires_grad_(True)


def has_adapter(name: str, drop_layers: Collection[int]) -> bool:
    """Whether the parameter ``name`` stands in a layer that keeps its adapters.

    The embeddings go with layer 0: below the lowest adapter the backbone is as it was pretrained.
    """
    layer = _LAYER.search(f".{name}")
    return (int(layer[1]) if layer else 0) not in drop_layers


def save_adapter(backbone: PreTrainedModel, name: str, folder: Path) -> None:
    """Write ``adapter_config.json`` and ``ADAPTER_FILE`` as stock AdapterHub does."""
    backbone.save_adapter(str(folder), name, with_head=False, use_safetensors=True)


def begin_as(backbone: PreTrainedModel, name: str, folder: Path, source: str) -> None:
    """Give the adapter ``name`` the weights of a saved one, ``source``; what that has beside, in other layers, is left.

    Raises:
        RuntimeError: the saved one is of another shape, or has nothing where this one is.
    """
    marks = f".adapters.{source}.", f".adapters.{name}."
    saved = {key.replace(*marks): tensor for key, tensor in load_file(folder / ADAPTER_FILE).items()}
    own = [key for key in backbone.state_dict() if marks[1] in key]
    if missing := [key for key in own if key not in saved]:
        raise RuntimeError(f"{folder} has no {missing[0]}")
    backbone.load_state_dict({key: saved[key] for key in own}, strict=False)


def load_adapter(backbone: PreTrainedModel, name: str, folder: Path, drop_layers: Collection[int] = ()) -> None:
    """Load a saved adapter under ``name``, frozen, without its part in ``drop_layers``.

    The caller has checked that it was made for this backbone.
    """
    adapters.init(backbone)
    backbone.load_adapter(
        str(folder),
        load_as=name,
        with_head=False,
        use_safetensors=True,
        set_active=True,
        leave_out=sorted(drop_layers) or None,
    )
    backbone.requires_grad_(False)
