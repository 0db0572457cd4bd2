"""AdapterFusion over experts, several adapters of the target that share an initialisation; it starts as their mean.

Adapters that start alike and differ in batch order and dropout lie in one basin (Wortsman et al. 2022, "Model soups"),
so their outputs z_n can be averaged in every layer. The layers are those of :mod:`pipeline.methods.anchored` without an
anchor: initially K = 0 and b = 0 make attention uniform, and A = 0 makes the value projection the identity, so
``o = 1/N sum_n z_n``. AdapterHub's layer can compute the same for any number of experts.
"""

from pipeline.methods.anchored import Anchored


class Experts(Anchored):
    file = "expert_fusion.safetensors"
    rank_key = "experts_rank"


FORM = Experts()
