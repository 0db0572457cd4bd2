"""Several tasks' adapters in one forward pass (AdapterHub's ``Parallel``), with one joined product per site.

The input is replicated at the first adapter, so all layers below it are computed once. From there on the batch holds N
streams, the first adapter's rows first. With x (N, B T, d) the streams at a site, N adapters are two products::

    y_n = x_n + U_n f(D_n x_n + b_n) + c_n        baddbmm(c, f(baddbmm(b, x, D^T)), U^T) + x

AdapterHub runs N small modules on N slices instead and concatenates their outputs; the result is the same.
"""

from collections.abc import Sequence

import torch
from adapters.composition import Parallel
from adapters.context import ForwardContext
from adapters.methods.bottleneck import BottleneckState
from transformers import PreTrainedModel

from pipeline.methods.bank import BankedSite, sites_of


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
