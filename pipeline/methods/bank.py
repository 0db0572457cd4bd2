"""AdapterBank: the frozen adapters of one site as a few joined matrices instead of N small modules."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from adapters.methods.bottleneck import BottleneckLayer, BottleneckState
from adapters.methods.modeling import Adapter
from torch import Tensor, nn

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


def sites_of(backbone: nn.Module) -> list[BottleneckLayer]:
    """AdapterHub's bottleneck and fusion sites, from the bottom up."""
    return [module for module in backbone.modules() if isinstance(module, BottleneckLayer)]


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
