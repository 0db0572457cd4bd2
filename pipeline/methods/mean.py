"""The mean of the adapters' outputs, on which only the head trains: a baseline for learned attention and gates.

At each site with frozen adapter outputs z_n, ``o = 1/N sum_n z_n``: a gated fusion with all gates frozen at 1/N.
AdapterHub's ``Average`` with default weights differs: it multiplies each output by 1/N and then takes the mean, so it
divides by N twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from transformers import PreTrainedModel

from pipeline.methods.gated import Gated, GatedFusion
from pipeline.methods.saved import replace_layers
from pipeline.settings.recipe import Recipe


class MeanFusion(GatedFusion):
    """The mean of N = ``size`` adapters at one site; a drop-in replacement for AdapterHub's fusion layer."""

    def __init__(self, width: int, size: int) -> None:
        super().__init__("scalar", width, size, own=None, start=1 / size)
        self.width = width
        self.requires_grad_(False)

    def over(self, kept: Sequence[int]) -> Self:
        return type(self)(self.width, len(kept)).to(self.bias.device).train(self.training)


class Mean(Gated):
    file = "mean_fusion.safetensors"

    def misfit(self, recipe: Recipe, width: int) -> str:
        return ""

    def put_in(
        self, backbone: PreTrainedModel, members: Sequence[str], task: str, recipe: Recipe, anchor: str | None
    ) -> None:
        replace_layers(backbone, members, lambda _: MeanFusion(backbone.config.hidden_size, len(members)))

    def stock_lacks(self, recipe: Recipe, files: object) -> str:
        return ""


FORM = Mean()
