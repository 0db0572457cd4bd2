"""Low-rank adaptation through AdapterHub (Hu et al. 2022, section 4.1).

In every layer the frozen projections of query and value each get a trained term of rank r::

    h = W x + alpha / r * B A x        A in R^{r x d}, B in R^{d x r}

B is zero at the start, so the first forward pass is the backbone's. 2rd parameters per projection. Hu et al. set alpha
to the first r that they try and do not tune it; here it is 8, their value for RoBERTa-base. There is no dropout on x.
"""

from adapters import LoRAConfig
from transformers import PretrainedConfig

from pipeline.methods.saved import StockAdapter
from pipeline.settings.recipe import Recipe

ALPHA = 8


def _config(recipe: Recipe, backbone: PretrainedConfig) -> LoRAConfig:
    return LoRAConfig(r=recipe.lora.rank, alpha=ALPHA, attn_matrices=["q", "v"])


LORA = StockAdapter(_config, within_width=("lora_rank",))
