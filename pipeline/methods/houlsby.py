"""Bottleneck adapters through AdapterHub (Houlsby et al. 2019; Pfeiffer et al. 2021 for the FFN-only variant).

"houlsby" changes the output h of each sub-layer, before the residual and LayerNorm; "pfeiffer" has one site, after the
FFN, and reads what the layer would return without an adapter (a: the FFN's input)::

    A(h) = h + W_up gelu(W_down h + b_down) + b_up
    A(h) = h + W_up gelu(W_down LN2(a + h) + b_down) + b_up        y = LN2(a + A(h))

2md + d + m parameters per site.

Layers may be left without an adapter (AdapterDrop, Rücklé et al. 2021). Adapters at the bottom help least and cost
most, because the backward pass ends at the lowest one.
"""

from collections.abc import Collection

from adapters import AdapterConfig, BnConfig, DoubleSeqBnConfig, SeqBnConfig
from transformers import PretrainedConfig, PreTrainedModel

from pipeline.methods.saved import SavedModules, StockAdapter, begin_as
from pipeline.settings.parts import BOTTLENECKS, AdapterKind
from pipeline.settings.recipe import Recipe
from pipeline.system.errors import PipelineError

_CONFIGS: dict[AdapterKind, type[BnConfig]] = {"houlsby": DoubleSeqBnConfig, "pfeiffer": SeqBnConfig}
"""AdapterHub's configuration of each kind of bottleneck."""


def bottleneck_of(recipe: Recipe, backbone: PretrainedConfig, width: int) -> AdapterConfig:
    """AdapterHub's configuration of the recipe's kind of bottleneck; ``width`` may exceed the backbone's."""
    factor = reduction_factor(backbone.hidden_size, width)
    return _CONFIGS[recipe.adapter.kind](reduction_factor=factor, non_linearity="gelu", init_weights="houlsby")


def reduction_factor(width: int, bottleneck: int) -> float:
    """The factor r for which AdapterHub's ``int(width // r)`` is ``bottleneck``.

    With the exact quotient the result is off by one wherever floating point rounds up, as it does for some bottleneck
    at most widths; half a unit more in the divisor then gives the right integer.
    """
    exact = width / bottleneck
    return exact if int(width // exact) == bottleneck else width / (bottleneck + 0.5)


BOTTLENECK = StockAdapter(
    lambda recipe, backbone: bottleneck_of(recipe, backbone, recipe.bottleneck.width), within_width=("bottleneck",)
)
"""Both kinds; the recipe says which."""


def load_adapter(backbone: PreTrainedModel, name: str, saved: SavedModules, drop_layers: Collection[int] = ()) -> None:
    """Load a saved bottleneck adapter of this backbone under ``name``, frozen, without its part in ``drop_layers``.

    Raises a :class:`PipelineError` if the files do not fit the recipe.
    """
    if saved.recipe.adapter.kind not in BOTTLENECKS:
        raise PipelineError(
            f"{saved.folder}: its recipe trains {saved.recipe.adapter.kind}, which is not a bottleneck: {saved.remedy}"
        )
    BOTTLENECK.put_in(backbone, name, saved.recipe, {*saved.recipe.adapter.drop_layers, *drop_layers})
    begin_as(backbone, name, saved)
    backbone.requires_grad_(False)
