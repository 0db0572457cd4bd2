"""Many adapters at once: joined, in parallel, probed, or merged into one.

:class:`AdapterBank` has the frozen adapters of one site as a few joined matrices instead of N small modules. It serves
fusion, and several tasks' adapters in one forward pass (AdapterHub's ``Parallel``). There the input is replicated at
the first adapter, so all layers below it are computed once. From there on the batch holds N streams, the first
adapter's rows first. With x (N, B T, d) the streams at a site, N adapters are two products::

    y_n = x_n + U_n f(D_n x_n + b_n) + c_n        baddbmm(c, f(baddbmm(b, x, D^T)), U^T) + x

AdapterHub runs N small modules on N slices instead and concatenates their outputs; the result is the same.

:class:`UnitReader` computes the units of many adapters on the frozen backbone, for probes. The units of adapter n at a
site are ``a_n = f(D_n h + b_n)``. Here h is computed without any adapter: the site's input, or for Pfeiffer adapters
the layer's output. An adapter's output is linear in its units, so a linear probe finds as much in the units as in the
output. This is an approximation: in the adapter's model, its lower sites change h. Only sites in the upper half of the
layers are used: a head reads what they write.

:func:`merge_into` merges the weights of several adapters into one, by their mean or by TIES. The adapters of a study
that share a seed start from the same weights, whatever their tasks. So unit i of one matches unit i of another, and an
adapter's difference from that start is its task's update: the *task vector* of Yadav et al. (2023), who subtract the
pretrained model. Adapters of different seeds have their units in different orders, so their mean is meaningless.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal

import torch
from adapters.composition import Parallel
from adapters.context import ForwardContext
from adapters.methods.bottleneck import BottleneckLayer, BottleneckState
from adapters.methods.modeling import Adapter
from torch import Tensor, nn
from transformers import PreTrainedModel

from pipeline.methods.houlsby import BOTTLENECK
from pipeline.methods.saved import SavedModules, adapter_parameters, begin_as, init_adapters, sites_of
from pipeline.models.layout import layers_of, module_parameter_names
from pipeline.models.transfer_model import pool
from pipeline.settings.parts import Merge

# Matrix products on GPUs need rows aligned to 16 bytes.
_ALIGNMENT = 8


@dataclass(frozen=True)
class AdapterBank:
    """N adapters ``z_n = U_n f(D_n x + b_n) + c_n`` of one site, their bottlenecks padded to the widest, m.

    Padding changes nothing: the rows of ``up`` that belong to a padded unit are zero.
    """

    size: int  # N
    bottleneck: int  # m, of the widest adapter
    down: Tensor  # (N m, d): the rows of D_1, D_2, ...
    bias: Tensor  # (N m)
    up: Tensor  # (N m + N', d): the columns of U_1, U_2, ..., then c_1 ... c_N, then zeros; N' is a multiple of eight
    is_shift: Tensor  # (N m + N'): one at the rows of ``up`` that hold a c_n, else zero
    activation: Any  # f, elementwise
    homes: tuple[Tensor, ...]  # views of these matrices that hold D_1, b_1, U_1, c_1, D_2, ...

    @property
    def units(self) -> int:
        """N m."""
        return self.size * self.bottleneck


class BankedSite:
    """Replaces an AdapterHub method at one site, and caches the bank of the adapters last used."""

    def __init__(self, site: BottleneckLayer, stock: Callable[..., BottleneckState]) -> None:
        self._site, self._stock = site, stock
        self._bank: AdapterBank | None = None
        self._parameters: list[nn.Parameter] = []  # those that the bank holds

    def _join(self, names: Sequence[object]) -> AdapterBank | None:
        """The bank of the adapters ``names``, or None if one is missing or does not fit."""
        if torch.compiler.is_exporting():  # weights have no address then; the previous pass's bank is right
            return self._bank
        if not all(isinstance(name, str) and name in self._site.adapters for name in names):
            return None
        adapters: list[nn.Module] = [self._site.adapters[name] for name in names]
        # Checked each time: adapters may have been made trainable since they were joined.
        if not fits_bank(adapters):
            return None
        self._parameters = [parameter for adapter in adapters for parameter in _parameters(adapter)]
        # A parameter may have been replaced or moved, and is then no longer stored in the bank.
        stored = [] if self._bank is None else [home.data_ptr() for home in self._bank.homes]
        if [parameter.data_ptr() for parameter in self._parameters] != stored:
            self._bank = join(adapters)
        return self._bank


def fits_bank(adapters: Sequence[Any]) -> bool:
    """Whether all are plain frozen bottlenecks with the same activation."""
    # AdapterHub's leaky ReLU is a bare function, which repr leaves out: no two different activations look alike.
    return len({repr(getattr(adapter, "non_linearity", None)) for adapter in adapters}) == 1 and all(
        type(adapter) is Adapter
        and not adapter.add_layer_norm_before
        and not adapter.add_layer_norm_after
        and not hasattr(adapter, "DropPath")
        and isinstance(adapter.scaling, float)
        and adapter.scaling == 1.0
        and type(adapter.adapter_down[0]) is nn.Linear
        and type(adapter.adapter_up) is nn.Linear
        and not any(parameter.requires_grad for parameter in adapter.parameters())
        for adapter in adapters
    )


@torch.inference_mode(False)  # otherwise a model that predicts first could never train these parameters
@torch.no_grad()
def join(adapters: Sequence[Any]) -> AdapterBank:
    """Move the weights of ``adapters`` into a bank; their parameters become views of it, so nothing is stored twice."""
    parameters = [_parameters(adapter) for adapter in adapters]
    bottlenecks = [len(down) for down, *_ in parameters]
    count, m, like = len(adapters), max(bottlenecks), parameters[0][0]
    width, tail = like.shape[1], -(-count // _ALIGNMENT) * _ALIGNMENT
    down = like.new_zeros(count * m, width)
    bias = like.new_zeros(count * m)
    up = like.new_zeros(count * m + tail, width)
    homes: list[Tensor] = []
    for n in range(count):
        rows = slice(n * m, n * m + bottlenecks[n])
        views = (down[rows], bias[rows], up[rows].T, up[count * m + n])
        for parameter, home in zip(parameters[n], views, strict=True):
            home.copy_(parameter)
            parameter.data = home
        homes += views
    is_shift = like.new_zeros(len(up))
    is_shift[count * m : count * m + count] = 1
    return AdapterBank(count, m, down, bias, up, is_shift, adapters[0].non_linearity, tuple(homes))


def _parameters(adapter: Any) -> tuple[nn.Parameter, ...]:
    """D, b, U and c of an adapter."""
    down, up = adapter.adapter_down[0], adapter.adapter_up
    return down.weight, down.bias, up.weight, up.bias


def parallel_adapters(backbone: PreTrainedModel, names: Sequence[str]) -> None:
    """Activate the loaded adapters ``names`` in parallel, for evaluation.

    Afterwards ``backbone(**inputs).last_hidden_state`` of B inputs is (N B, T, d): the B rows that ``names[0]`` alone
    would give, then those of ``names[1]``, ... Layers below the first site are computed once.

    The caller ensures that all are at the same sites, and of one kind: AdapterHub reads from one adapter for all where
    the residual is taken and whether the LayerNorm comes first.
    """
    for site in (site for site in sites_of(backbone) if names[0] in site.adapters):
        vars(site).pop("compose_parallel", None)
        site.compose_parallel = ParallelSite(site, site.compose_parallel)
    backbone.set_active_adapters(Parallel(*names))


class ParallelSite(BankedSite):
    """Replaces ``compose_parallel`` at one site.

    Falls back to AdapterHub's method for adapters that train, have gates or LayerNorms, and for nested compositions.
    """

    def __call__(self, setup: Parallel, state: BottleneckState, lvl: int = 0) -> BottleneckState:
        site = self._site
        bank = None if site.training else self._join(setup.children)
        if bank is None or any(site.adapters[name].use_gating for name in setup.children):
            return self._stock(setup, state, lvl)
        context = ForwardContext.get_context()
        if not context.adapters_parallelized:
            context.original_batch_size = len(state.hidden_states)
            context.adapters_parallelized = True
            state = site.repeat(state, bank.size)
        state = site.pre_block(setup, state)
        n, m, d = bank.size, bank.bottleneck, state.hidden_states.shape[-1]
        down = bank.down.view(n, m, d).transpose(1, 2)
        up, shift = bank.up[: n * m].view(n, m, d), bank.up[n * m : n * m + n].unsqueeze(1)
        streams = state.hidden_states.reshape(n, -1, d)  # (N, B T, d)
        inner = bank.activation(torch.baddbmm(bank.bias.view(n, 1, m), streams, down))  # (N, B T, m)
        hidden = torch.baddbmm(shift, inner, up).view_as(state.hidden_states) + state.adapter_residual
        return state._replace(hidden_states=hidden, last=setup.last())


class UnitReader:
    """Computes the units of the ``saved`` adapters, whose bottlenecks are joined site by site; none is active.

    Args:
        backbone: a copy that only this reader uses, on the device to compute on.
    """

    def __init__(self, backbone: PreTrainedModel, saved: Sequence[SavedModules]) -> None:
        init_adapters(backbone)
        self._backbone, self._count = backbone.eval(), len(saved)
        joined: list[tuple[BottleneckLayer, list[tuple[int, Tensor, Tensor]]]]
        joined = [(site, []) for site in sites_of(backbone)]
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
            begin_as(backbone, name, adapter, parameters)
            for site, parts in joined:
                if name in site.adapters:
                    down = site.adapters[name].adapter_down[0]
                    parts.append((position, down.weight.detach().clone(), down.bias.detach().clone()))
        backbone.set_active_adapters(None)
        backbone.requires_grad_(False)
        lowest = len(layers_of(backbone)) // 2
        self._sites = [
            _JoinedSite(site, parts, backbone.device) for site, parts in joined if parts and site.layer_idx >= lowest
        ]

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
    """The joined bottlenecks of adapters at ``site``, which keeps their input in each forward pass.

    ``parts`` has the position of each adapter, its D and its b.
    """

    def __init__(
        self, site: BottleneckLayer, parts: Sequence[tuple[int, Tensor, Tensor]], device: torch.device
    ) -> None:
        positions, downs, biases = zip(*parts, strict=True)
        # AdapterHub makes adapters on the CPU, wherever the backbone is.
        self._down, self._bias = torch.cat(downs).to(device), torch.cat(biases).to(device)
        ends = [0, *accumulate(map(len, biases))]
        self.places = dict(zip(positions, map(slice, ends, ends[1:]), strict=True))
        """The units of each adapter, by its position."""
        self._module: Any = next(iter(site.adapters.values()))  # they all have the same kind and activation
        self._hidden = torch.empty(0)
        stock = site.bottleneck_layer_forward

        def forward(states: Tensor, residual: Tensor, layer_norm: Any) -> Any:
            self._hidden = self._module.pre_forward(states, residual, layer_norm)[0]
            return stock(states, residual, layer_norm)

        site.bottleneck_layer_forward = forward

    def units(self, of_first: bool) -> Tensor:
        """The units of all adapters in the last forward pass, (B, T, units), or (B, 1, units) of the first token."""
        hidden, self._hidden = self._hidden, torch.empty(0)
        hidden = hidden[:, :1] if of_first else hidden
        units: Tensor = self._module.non_linearity(nn.functional.linear(hidden, self._down, self._bias))
        return units


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
