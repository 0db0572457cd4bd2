"""AdapterFusion over experts, several adapters of the target that share an initialisation; it starts as their mean.

Adapters that start alike and differ in batch order and dropout lie in one basin (Wortsman et al. 2022, "Model soups"),
so their outputs z_n can be averaged in every layer. The layers are those of :mod:`pipeline.methods.anchored` without an
anchor: initially K = 0 and b = 0 make attention uniform, and A = 0 makes the value projection the identity, so
``o = 1/N sum_n z_n``. AdapterHub's layer can compute the same for any number of experts.
"""

from collections.abc import Sequence

from transformers import PreTrainedModel

from pipeline.methods.anchored import Anchored, anchor_fusion
from pipeline.methods.saved import too_wide
from pipeline.settings.recipe import Recipe


class Experts(Anchored):
    file = "expert_fusion.safetensors"

    def misfit(self, recipe: Recipe, width: int) -> str:
        return too_wide("experts_rank", recipe.experts.rank, width)

    def put_in(
        self, backbone: PreTrainedModel, members: Sequence[str], task: str, recipe: Recipe, anchor: str | None
    ) -> None:
        anchor_fusion(backbone, members, recipe.experts.rank, {})


FORM = Experts()
