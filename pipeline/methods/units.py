"""The units of many adapters on the frozen backbone, computed together in one pass over the inputs.

The units of adapter n at a site are ``a_n = f(D_n h + b_n)``. Here h is computed without any adapter: the site's input,
or for Pfeiffer adapters the layer's output. An adapter's output is linear in its units, so a linear probe finds as much
in the units as in the output. This is an approximation: in the adapter's model, its lower sites change h.

Only sites in the upper half of the layers are used: a head reads what they write.
"""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from adapters.methods.bottleneck import BottleneckLayer
from torch import Tensor, nn
from transformers import PreTrainedModel

from pipeline.methods.bank import sites_of
from pipeline.methods.houlsby import BOTTLENECK
from pipeline.methods.saved import SavedModules, adapter_parameters, init_adapters, read_into
from pipeline.models.layout import layers_of
from pipeline.models.transfer_model import pool


class UnitReader:
    """Computes the units of the ``saved`` adapters, whose bottlenecks are joined site by site; none is active.

    Args:
        backbone: a copy that only this reader uses, on the device to compute on.
    """

    def __init__(self, backbone: PreTrainedModel, saved: Sequence[SavedModules]) -> None:
        init_adapters(backbone)
        self._backbone, self._count = backbone.eval(), len(saved)
        joined_sites = [_JoinedSite(site) for site in sites_of(backbone)]
        # One module per shape of adapter; all adapters of that shape are loaded into it in turn.
        modules: dict[object, tuple[str, dict[tuple[str, str], Tensor]]] = {}
        for position, adapter in enumerate(saved):
            recipe = adapter.recipe
            shape = recipe.adapter.kind, recipe.bottleneck.width, recipe.adapter.drop_layers
            if shape not in modules:
                name = f"shape{len(modules)}"
                BOTTLENECK.put_in(backbone, name, recipe, recipe.adapter.drop_layers)
                modules[shape] = name, adapter_parameters(backbone, name)
            name, parameters = modules[shape]
            read_into(parameters, backbone, name, adapter)
            for joined in joined_sites:
                joined.add(position, name)
        backbone.set_active_adapters(None)
        backbone.requires_grad_(False)
        lowest = len(layers_of(backbone)) // 2
        self._sites = [joined for joined in joined_sites if joined.places and joined.site.layer_idx >= lowest]
        for joined in self._sites:
            joined.finish(backbone.device)

    @torch.inference_mode()
    def read(self, inputs: dict[str, Tensor], pooling: str) -> tuple[Tensor, list[Tensor]]:
        """Sentence vectors (B, d) of the bare backbone, and each adapter's units (B, its units), pooled the same way.

        Pooling "pooler" takes the first token.
        """
        rule: Literal["cls", "mean"] = "mean" if pooling == "mean" else "cls"
        bare = self._backbone(**inputs).last_hidden_state
        parts: list[list[Tensor]] = [[] for _ in range(self._count)]
        for joined in self._sites:
            # Compute only the first token's units if nothing else is read: there may be a thousand adapters.
            units = pool(joined.units(of_first=rule == "cls"), inputs["attention_mask"], rule)
            for position, place in joined.places.items():
                parts[position].append(units[:, place])
        none = bare.new_empty(len(bare), 0)
        return pool(bare, inputs["attention_mask"], rule), [torch.cat([none, *units], dim=1) for units in parts]


class _JoinedSite:
    """The joined bottlenecks of all adapters at ``site``, which keeps their input in each forward pass."""

    def __init__(self, site: BottleneckLayer) -> None:
        self.site = site
        self.places: dict[int, slice] = {}  # the units of each adapter, by its position
        self._downs, self._biases = list[Tensor](), list[Tensor]()
        self._width = 0
        self._module: Any = None  # any of them: they all have the same kind and activation
        self._hidden = torch.empty(0)

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
        stock = self.site.bottleneck_layer_forward

        def forward(states: Tensor, residual: Tensor, layer_norm: Any) -> Any:
            self._hidden = self._module.pre_forward(states, residual, layer_norm)[0]
            return stock(states, residual, layer_norm)

        self.site.bottleneck_layer_forward = forward

    def units(self, of_first: bool) -> Tensor:
        """The units of all adapters in the last forward pass, (B, T, units), or (B, 1, units) of the first token."""
        hidden, self._hidden = self._hidden, torch.empty(0)
        hidden = hidden[:, :1] if of_first else hidden
        units: Tensor = self._module.non_linearity(nn.functional.linear(hidden, self._down, self._bias))
        return units
