"""The kinds of adapters that a recipe may name: their settings, and whether fusion can mix them.

What a kind does stands in its own file of ``pipeline/methods``, which the registry there holds under the same name.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BaseModel, Field

# No use comes near these bounds, and nothing computed from numbers within them overflows.
Width = Annotated[int, Field(le=2**16)]
Tokens = Annotated[int, Field(le=8192)]

AdapterKind = Literal["houlsby", "pfeiffer", "pal", "prefix", "prefix-tuning", "lora", "ia3"]


class AdapterSettings(BaseModel):
    """The settings of all kinds; a recipe ignores those of other kinds than its own."""

    bottleneck: Width = Field(64, ge=1, description="adapter width m")
    train_layernorm: bool = Field(False, description="train the LayerNorms with the adapter (Houlsby et al. 2019)")
    pal_size: Width = Field(204, ge=1, description="width s of a projected attention layer")
    pal_heads: Width = Field(12, ge=1, description="its attention heads; they divide pal_size")
    prefix_length: Tokens = Field(10, ge=1, description="vectors that a prefix puts before each layer's input")
    lora_rank: Width = Field(8, ge=1, description="rank r of what LoRA adds to query and value")


@dataclass(frozen=True)
class KindSettings:
    keys: tuple[str, ...] = ()
    """Fields of :class:`AdapterSettings`."""
    can_be_fused: bool = False


ADAPTER_KINDS: dict[AdapterKind, KindSettings] = {
    "houlsby": KindSettings(("bottleneck", "train_layernorm"), can_be_fused=True),
    "pfeiffer": KindSettings(("bottleneck", "train_layernorm"), can_be_fused=True),
    "pal": KindSettings(("pal_size", "pal_heads")),
    "prefix": KindSettings(("prefix_length",)),
    "prefix-tuning": KindSettings(("prefix_length",)),
    "lora": KindSettings(("lora_rank",)),
    "ia3": KindSettings(),
}

BOTTLENECKS = frozenset(kind for kind, settings in ADAPTER_KINDS.items() if settings.can_be_fused)
