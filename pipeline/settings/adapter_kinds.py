"""The kinds of adapters that a recipe may name: their settings, and whether fusion can mix them.

What a kind does stands in its own file of ``pipeline/methods``, which the registry there holds under the same name.
"""

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import ConfigDict, Field, ValidationInfo, field_validator

from pipeline.settings.layers import parse_layers
from pipeline.settings.part import Part, Tokens, Width

AdapterKind = Literal["houlsby", "pfeiffer", "pal", "prefix", "prefix-tuning", "lora", "ia3"]


class AdapterSettings(Part):
    flags = {"kind": "adapter", "drop_layers": "drop_layers"}

    kind: AdapterKind = Field("houlsby", description="a task's modules: bottlenecks, PAL, prefixes of two kinds, ...")
    drop_layers: tuple[int, ...] = Field((), description="layers without adapters or fusion, such as 0-4 (AdapterDrop)")

    @field_validator("drop_layers", mode="before")
    @classmethod
    def _parse_layers(cls, value: Any) -> tuple[int, ...]:
        return parse_layers(value)


class Bottleneck(Part):
    flags = {"width": "bottleneck", "train_layernorm": "train_layernorm"}

    width: Width = Field(64, ge=1, description="adapter width m")
    train_layernorm: bool = Field(False, description="train the LayerNorms with the adapter (Houlsby et al. 2019)")


class Pal(Part):
    model_config = ConfigDict(validate_default=True)

    size: Width = Field(204, ge=1, description="width s of a projected attention layer")
    heads: Width = Field(12, ge=1, description="its attention heads; they divide the size")

    @field_validator("heads")
    @classmethod
    def _divide_the_size(cls, heads: int, info: ValidationInfo) -> int:
        size = info.data.get("size")
        if size is not None and size % heads:
            raise ValueError(f"each head has as many numbers, so give a divisor of pal_size ({size})")
        return heads


class Prefix(Part):
    length: Tokens = Field(10, ge=1, description="vectors that a prefix puts before each layer's input")


class Lora(Part):
    rank: Width = Field(8, ge=1, description="rank r of what LoRA adds to query and value")


@dataclass(frozen=True)
class KindSettings:
    part: str = ""
    """The part of a recipe that holds the settings of this kind alone; empty: it has none."""
    can_be_fused: bool = False


ADAPTER_KINDS: dict[AdapterKind, KindSettings] = {
    "houlsby": KindSettings("bottleneck", can_be_fused=True),
    "pfeiffer": KindSettings("bottleneck", can_be_fused=True),
    "pal": KindSettings("pal"),
    "prefix": KindSettings("prefix"),
    "prefix-tuning": KindSettings("prefix"),
    "lora": KindSettings("lora"),
    "ia3": KindSettings(),
}

BOTTLENECKS = frozenset(kind for kind, settings in ADAPTER_KINDS.items() if settings.can_be_fused)
