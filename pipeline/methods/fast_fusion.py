"""The function of AdapterHub's fusion block, outputs and gradients, at a fraction of its cost.

Stock fusion projects every adapter's output, ``s = softmax_n(Q h . K z_n)`` and ``o = sum_n s_n V z_n``, which takes
1 + 2N products with d x d matrices per token. With ``z_n = U_n a_n + c_n`` (:class:`AdapterBank`) neither z_n nor its
projections are needed::

    Q h . K z_n = a_n . x_n + x'_n        where  (x_1, x'_1, ...) = [U C]^T K^T Q h,  a query in bottleneck space
    sum_n s_n V z_n = V [U C] (s_1 a_1, ..., s_1, ...)

Where that saves operations, products of weights are computed once per step (``folded``), not once per token.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import torch
from adapters.composition import Fuse
from adapters.context import ForwardContext
from adapters.methods.bottleneck import BottleneckState
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from pipeline.methods.anchored import AnchoredFusion
from pipeline.methods.bank import AdapterBank, BankedSite
from pipeline.methods.gated import GatedFusion

Form = Literal["folded", "half", "plain"]

# On a CPU the elementwise part handles blocks of tokens with this many numbers, so that they stay in its cache.
_CACHED = 2**18


class FusionSite(BankedSite):
    """Replaces ``compose_fuse`` at one site; parameters stay in AdapterHub's modules.

    Falls back to AdapterHub's method for adapters that train or have LayerNorms, nested compositions and static fusion.
    Like that method, it reads an adapter's output before its gate.
    """

    _folded: tuple[AdapterBank, tuple[Any, ...], _Projections] | None = None

    def __call__(self, setup: Fuse, state: BottleneckState, lvl: int = 0) -> BottleneckState:
        if torch.is_grad_enabled():
            # A training step may follow and change weights, on any path, and fused optimisers do not bump versions.
            self._folded = None
        site, fusions, context = self._site, self._site.adapter_fusion_layer, ForwardContext.get_context()
        config, _ = site.adapters_config.get_fusion(setup.name)
        shows = context is not None and context.output_adapter_fusion_attentions
        is_gated = setup.name in fusions and isinstance(fusions[setup.name], GatedFusion)
        if is_gated:
            # The frozen sources as one bank, plus the target's adapter, which may train.
            is_stock, names = shows, [setup.children[n] for n in fusions[setup.name].gated]
        else:
            is_full = config["query"] and config["key"] and config["value"]
            is_stock, names = not is_full or config["residual_before"] or config["temperature"], setup.children
        bank = None if is_stock else self._join(names)
        if bank is None:
            return self._stock(setup, state, lvl)
        fusion, last = fusions[setup.name], site.adapters[setup.last()]
        hidden, query, residual = last.pre_forward(
            state.hidden_states, state.input_tensor, state.layer_norm, fusion_config=config
        )
        if is_gated:
            fused = fusion.mixed(bank, hidden, query)
            if fusion.own is not None:
                adapter = site.adapters[setup.children[fusion.own]]
                fused = fused + adapter.adapter_up(adapter.adapter_down(hidden))
        else:
            fused, attention = self._fuse(fusion, bank, hidden, query)
            if shows:
                site._store_fusion_attentions(setup.name, attention.detach().float().cpu().numpy())
        return state._replace(hidden_states=fused + residual, adapter_residual=residual, last=setup.last())

    def _fuse(self, fusion: Any, bank: AdapterBank, hidden: Tensor, query: Tensor) -> tuple[Tensor, Tensor]:
        """``sum_n s_n V z_n`` (B, T, d) and ``s`` (B, T, N)."""
        tokens = hidden.numel() // hidden.shape[-1]
        weights = self._projections(fusion, bank, tokens)
        inner = F.linear(hidden, bank.down, bank.bias)  # (B, T, N m)
        cross, shift = _cross(query, weights, bank, fusion)  # (B, T, N m + N'), (B, T)
        factor = None
        if fusion.training and fusion.dropout.p > 0:
            # Dropout on ones gives the factors on the scores, drawn as stock fusion draws them.
            shape = (*hidden.shape[:-1], bank.size)
            factor = fusion.dropout(torch.ones(shape, dtype=_precise(hidden.dtype), device=hidden.device))
        if shift is not None:
            shift = shift.unsqueeze(-1)
        mixing = _mix if torch.compiler.is_exporting() else _Mix.apply
        mix, attention = mixing(inner, cross, shift, factor, bank.activation, bank.size)
        if weights.value is not None:
            return mix @ weights.value, attention
        return F.linear(mix @ bank.up, _value(fusion)), attention

    def _projections(self, fusion: Any, bank: AdapterBank, tokens: int) -> _Projections:
        if torch.is_grad_enabled():
            return _project(fusion, bank, *cheapest_forms(tokens, bank, len(fusion.key.weight)))
        if torch.compiler.is_exporting() and self._folded is not None:
            return self._folded[2]
        # Nothing trains, so the folded weights stay valid until training resumes or weights are loaded. Loading bumps
        # the versions of the parameters, an adapter's too, but not those of the bank's tensors.
        read = (*fusion.parameters(), *self._parameters)
        stamp = tuple((parameter.data_ptr(), parameter._version) for parameter in read)
        if self._folded is None or self._folded[0] is not bank or self._folded[1] != stamp:
            self._folded = bank, stamp, _project(fusion, bank, "folded", "folded")
        return self._folded[2]


class _Projections(NamedTuple):
    """Weights made from Q, K, V and the bank; None where the plain chain of products is cheaper."""

    query: Any  # folded: (N m + N', d); half: K^T Q, (d, d)
    query_bias: Tensor | None
    value: Tensor | None  # (N m + N', d)
    form: Form


def cheapest_forms(tokens: int, bank: AdapterBank, rank: int) -> tuple[Form, Form]:
    """The query and value forms with the fewest multiplications, forward and backward; ``rank`` is that of Q and K.

    Costs are in units of d^2. A product over tokens costs three times its forward pass if its weight trains, else two.
    """
    d = bank.down.shape[1]
    across, share = tokens * bank.units / d, rank / d
    query: dict[Form, float] = {
        "folded": 3 * across + 5 * bank.units * share,
        "half": 3 * tokens + 2 * across + 3 * d * share,
        "plain": 6 * tokens * share + 2 * across,
    }
    value: dict[Form, float] = {"folded": 3 * across + 2 * bank.units, "plain": 3 * tokens + 2 * across}
    return min(query, key=lambda form: query[form]), min(value, key=lambda form: value[form])


def _project(fusion: Any, bank: AdapterBank, query_form: Form, value_form: Form) -> _Projections:
    # In the weights' precision: under autocast the product is then rounded only once, when it is used.
    with torch.autocast(bank.up.device.type, enabled=False):
        query, query_bias = None, None
        if query_form == "folded":
            keys = bank.up @ fusion.key.weight.T
            if fusion.key.bias is not None:
                keys = torch.addr(keys, bank.is_shift, fusion.key.bias)
            query, query_bias = keys @ fusion.query.weight, keys @ fusion.query.bias
            if isinstance(fusion, AnchoredFusion):
                query_bias = query_bias + _at_shifts(fusion.score_bias, bank)
        elif query_form == "half":
            query = fusion.key.weight.T @ fusion.query.weight
            query_bias = fusion.key.weight.T @ fusion.query.bias
        value = bank.up @ _value(fusion).T if value_form == "folded" else None
    return _Projections(query, query_bias, value, query_form)


def _cross(query: Tensor, weights: _Projections, bank: AdapterBank, fusion: Any) -> tuple[Tensor, Tensor | None]:
    """The query in bottleneck space (B, T, N m + N'), and the term that the key's bias adds to all N scores.

    That term changes the softmax only if dropout follows it, but in training every parameter should get its gradient,
    even a zero one. The folded form includes the term at no cost.
    """
    if weights.form == "folded":
        return F.linear(query, weights.query, weights.query_bias), None
    key_bias = fusion.key.bias if torch.is_grad_enabled() else None
    shift = None
    if weights.form == "half":
        if key_bias is not None:
            shift = query @ (key_bias @ fusion.query.weight) + key_bias @ fusion.query.bias
        in_key_space = F.linear(query, weights.query, weights.query_bias)
    else:
        queried = fusion.query(query)
        if key_bias is not None:
            shift = queried @ key_bias.to(queried.dtype)
        in_key_space = queried @ fusion.key.weight
    bias = _at_shifts(fusion.score_bias, bank) if isinstance(fusion, AnchoredFusion) else None
    return F.linear(in_key_space, bank.up, bias), shift


def _at_shifts(bias: Tensor, bank: AdapterBank) -> Tensor:
    """``bias`` (N,) where the bank has its c_n, zero elsewhere: (N m + N')."""
    return F.pad(bias, (bank.units, len(bank.is_shift) - bank.units - bank.size))


def _value(fusion: Any) -> Tensor:
    return fusion.value_weight() if isinstance(fusion, AnchoredFusion) else fusion.value.weight


def _mix(
    inner: Tensor, cross: Tensor, shift: Tensor | None, factor: Tensor | None, activation: Any, size: int
) -> tuple[Tensor, Tensor]:
    """:class:`_Mix` in operations that can be exported; they take more memory."""
    units = inner.shape[-1]
    active = activation(inner).unflatten(-1, (size, -1))  # (B, T, N, m)
    scores = (active * cross[..., :units].unflatten(-1, (size, -1))).sum(-1) + cross[..., units : units + size]
    scores = scores if shift is None else scores + shift
    attention = (scores if factor is None else scores * factor).softmax(-1)
    mixed = (active * attention.unsqueeze(-1)).flatten(-2)
    return F.pad(torch.cat([mixed, attention], dim=-1), (0, cross.shape[-1] - units - size)), attention


class _Mix(torch.autograd.Function):
    """``(s_1 a_1, ..., s_N a_N, s, 0)`` with ``a = f(inner)`` and ``s = softmax(factor * (a_n . x_n + x'_n + shift))``.

    Written by hand because autograd would keep five tensors of the bottlenecks' width where two are enough, and
    because block by block the dozen elementwise steps stay in a CPU's cache.
    """

    @staticmethod
    def forward(
        ctx: Any, inner: Tensor, cross: Tensor, shift: Tensor | None, factor: Tensor | None, activation: Any, size: int
    ) -> tuple[Tensor, Tensor]:
        units = inner.shape[-1]
        mix = torch.empty_like(cross)
        attention = torch.empty((*inner.shape[:-1], size), dtype=_precise(inner.dtype), device=inner.device)
        parts = (inner, cross, shift, factor, mix, attention)
        for inner_, cross_, shift_, factor_, mix_, attention_ in _blocks(*parts):
            active = activation(inner_)
            by_adapter = active.unflatten(-1, (size, -1))  # (t, N, m)
            scores = (by_adapter * cross_[:, :units].unflatten(-1, (size, -1))).sum(-1, dtype=attention.dtype)
            scores += cross_[:, units : units + size]
            if shift_ is not None:
                scores += shift_
            if factor_ is not None:
                scores *= factor_
            torch.softmax(scores, -1, out=attention_)
            mixed = mix_[:, :units].unflatten(-1, (size, -1))
            torch.mul(by_adapter, attention_.unsqueeze(-1).to(active.dtype), out=mixed)
            mix_[:, units : units + size] = attention_
            mix_[:, units + size :] = 0
        ctx.save_for_backward(inner, cross, factor, attention)
        ctx.activation, ctx.has_shift = activation, shift is not None
        ctx.mark_non_differentiable(attention)
        return mix, attention

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_mix: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        inner, cross, factor, attention = ctx.saved_tensors
        units, size = inner.shape[-1], attention.shape[-1]
        grad_inner, grad_cross = torch.empty_like(inner), torch.empty_like(cross)
        grad_shift = attention.new_empty((*attention.shape[:-1], 1)) if ctx.has_shift else None
        parts = (inner, cross, factor, attention, grad_mix.contiguous(), grad_inner, grad_cross, grad_shift)
        for inner_, cross_, factor_, attention_, grad_mix_, grad_inner_, grad_cross_, grad_shift_ in _blocks(*parts):
            with torch.enable_grad():
                source = inner_.detach().requires_grad_()
                activated = ctx.activation(source)
            by_adapter = activated.detach().unflatten(-1, (size, -1))  # (t, N, m)
            grad_mixed = grad_mix_[:, :units].unflatten(-1, (size, -1))
            grad_scores = (by_adapter * grad_mixed).sum(-1, dtype=attention.dtype)
            grad_scores += grad_mix_[:, units : units + size]
            grad_scores -= (grad_scores * attention_).sum(-1, keepdim=True)
            grad_scores *= attention_
            if factor_ is not None:
                grad_scores *= factor_
            if grad_shift_ is not None:
                torch.sum(grad_scores, -1, keepdim=True, out=grad_shift_)
            weight = grad_scores.unsqueeze(-1).to(inner.dtype)
            torch.mul(by_adapter, weight, out=grad_cross_[:, :units].unflatten(-1, (size, -1)))
            grad_cross_[:, units : units + size] = grad_scores
            grad_cross_[:, units + size :] = 0
            grad_active = grad_mixed * attention_.unsqueeze(-1).to(inner.dtype)
            grad_active.addcmul_(cross_[:, :units].unflatten(-1, (size, -1)), weight)
            grad_inner_.copy_(*torch.autograd.grad(activated, source, grad_active.flatten(-2)))
        return grad_inner, grad_cross, grad_shift, None, None, None


def _blocks(inner: Tensor, *others: Tensor | None) -> Iterator[list[Any]]:
    """Blocks of tokens (t, k) of tensors (B, T, k), as views: outputs are written through them."""
    parts = [None if part is None else part.view(-1, part.shape[-1]) for part in (inner, *others)]
    tokens = inner.numel() // inner.shape[-1]
    step = tokens if inner.is_cuda else max(1, _CACHED // inner.shape[-1])
    for start in range(0, tokens, step):
        yield [None if part is None else part[start : start + step] for part in parts]


def _precise(dtype: torch.dtype) -> torch.dtype:
    """Scores and their softmax are in fp32 at least, as under autocast."""
    return torch.promote_types(dtype, torch.float32)
