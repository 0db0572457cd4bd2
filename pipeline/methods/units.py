"""What the bottlenecks of many adapters read off the frozen backbone, in one pass over the inputs for all of them.

The units of adapter n at a site are ``a_n = f(D_n h + b_n)``, here with the h that it would read where no adapter is
active: what reaches the site, or for Pfeiffer's adapters what the layer returns. The adapter's output is linear in
them: a linear probe of the units sees what one of the output would. It is an approximation, since in the adapter's own
model the sites below change h.

Only sites in the upper half of the layers count: a head reads what they write.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from adapters.methods.bottleneck import BottleneckLayer
from torch import Tensor, nn
from transformers import PreTrainedModel

from pipeline.data.tasks import Pooling
from pipeline.methods.bank import sites_of
from pipeline.methods.houlsby import BOTTLENECK
from pipeline.methods.saved import SavedModules, adapter_parameters, init_adapters, read_into
from pipeline.models.layout import layers_of
from pipeline.models.transfer_model import pool


class UnitReader:
    """The bottlenecks of the ``saved`` adapters, joined site by site; none of them is active.

    Args:
        backbone: a copy for the reader alone, on the device that is to compute.
    """

    def __init__(self, backbone: PreTrainedModel, saved: Sequence[SavedModules]) -> None:
        init_adapters(backbone)
        self._backbone, self._count = backbone.eval(), len(saved)
        joined_sites = [_JoinedSite(site) for site in sites_of(backbone)]
        # A module for each shape, which each adapter of that shape passes through: its name, and its parameters.
        modules: dict[object, tuple[str, dict[tuple[str, str], Tensor]]] = {}
        for position, each in enumerate(saved):
            kind, dropped = each.recipe.adapter.kind, each.recipe.adapter.drop_layers
            shape = kind, each.recipe.bottleneck.width, dropped
            if shape not in modules:
                name = f"shape{len(modules)}"
                BOTTLENECK.put_in(backbone, name, each.recipe, dropped)
                modules[shape] = name, adapter_parameters(backbone, name)
            name, parameters = modules[shape]
            read_into(parameters, backbone, name, each)
            for joined in joined_sites:
                joined.add(position, name)
        backbone.set_active_adapters(None)
        backbone.requires_grad_(False)
        lowest = len(layers_of(backbone)) // 2
        self._sites = [joined for joined in joined_sites if joined.places and joined.site.layer_idx >= lowest]
        for joined in self._sites:
            joined.finish(backbone.device)

    @torch.inference_mode()
    def read(self, inputs: dict[str, Tensor], pooling: Pooling) -> tuple[Tensor, list[Tensor]]:
        """Sentence vectors (B, d) of the bare backbone, and the units of each adapter, (B, its units), pooled alike.

        What a pooler reads is the first token.
        """
        pooling = "cls" if pooling == "pooler" else pooling
        with _recorded(self._sites) as hidden:
            bare = self._backbone(**inputs).last_hidden_state
        parts: list[list[Tensor]] = [[] for _ in range(self._count)]
        for joined in self._sites:
            # Of units of a thousand adapters those of one token are made, if no other is read.
            states = hidden[joined.site][:, :1] if pooling == "cls" else hidden[joined.site]
            units = pool(joined.units(states), inputs["attention_mask"], pooling)
            for position, place in joined.places.items():
                parts[position].append(units[:, place])
        none = bare.new_empty(len(bare), 0)
        return pool(bare, inputs["attention_mask"], pooling), [torch.cat([none, *each], dim=1) for each in parts]


class _JoinedSite:
    """The bottlenecks of all adapters that stand at ``site``."""

    def __init__(self, site: BottleneckLayer) -> None:
        self.site = site
        self.places: dict[int, slice] = {}  # the units of each adapter, by its position
        self._downs, self._biases = list[Tensor](), list[Tensor]()
        self._width = 0
        self._module: Any = None  # one of them: of what kind they are, and their activation, is the same for all

    def add(self, position: int, name: str) -> None:
        if name not in self.site.adapters:
            return
        module: Any = self.site.adapters[name]
        first, self._width = self._width, self._width + module.adapter_down[0].out_features
        self.places[position] = slice(first, self._width)
        self._downs.append(module.adapter_down[0].weight.detach().clone())
        self._biases.append(module.adapter_down[0].bias.detach().clone())
        self._module = module

    def finish(self, device: torch.device) -> None:
        # AdapterHub makes adapters on the CPU, wherever the backbone is.
        self._down, self._bias = torch.cat(self._downs).to(device), torch.cat(self._biases).to(device)
        self._downs, self._biases = [], []

    def read(self, states: Tensor, residual: Tensor, layer_norm: Any) -> Tensor:
        """What the bottlenecks read where ``states`` (B, T, d) reach the site."""
        hidden: Tensor = self._module.pre_forward(states, residual, layer_norm)[0]
        return hidden

    def units(self, hidden: Tensor) -> Tensor:
        """(B, T, d) to (B, T, units of all adapters)."""
        units: Tensor = self._module.non_linearity(nn.functional.linear(hidden, self._down, self._bias))
        return units


@contextmanager
def _recorded(joined_sites: Sequence[_JoinedSite]) -> Iterator[dict[BottleneckLayer, Tensor]]:
    """What the bottlenecks of each site read in the next forward pass, (B, T, d)."""
    hidden: dict[BottleneckLayer, Tensor] = {}

    def recording(joined: _JoinedSite, stock: Any) -> Any:
        def forward(states: Tensor, residual: Tensor, layer_norm: Any) -> Any:
            hidden[joined.site] = joined.read(states, residual, layer_norm)
            return stock(states, residual, layer_norm)

        return forward

    sites: list[Any] = [joined.site for joined in joined_sites]
    for joined, site in zip(joined_sites, sites, strict=True):
        site.bottleneck_layer_forward = recording(joined, site.bottleneck_layer_forward)
    try:
        yield hidden
    finally:
        for site in sites:
            del site.bottleneck_layer_forward
