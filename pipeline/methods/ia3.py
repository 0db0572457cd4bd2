"""(IA)^3 through AdapterHub (Liu et al. 2022, section 3.3): trained vectors that rescale inner activations.

In every layer, with * elementwise::

    softmax(Q (l_k * K)^T / sqrt(d_head)) (l_v * V)        l_k, l_v in R^d
    W_2 gelu(l_ff * (W_1 x + b_1)) + b_2                   l_ff in R^{d_ff}

All vectors are one at the start, so the first forward pass is the backbone's. 2d + d_ff parameters per layer.
AdapterHub rescales before the activation of the feed-forward layer, the paper after it: ``W_2 (l_ff * gelu(W_1 x))``.

AdapterHub stores the vectors as matrices (d, 1), so ``weight_decay`` pulls them to zero; a recipe may switch it off.
"""

from adapters import IA3Config

from pipeline.methods.saved import StockAdapter

IA3 = StockAdapter(lambda recipe, backbone: IA3Config(attn_matrices=["k", "v"], intermediate_lora=True))
