"""The adapter kinds, under the names that recipes use."""

from __future__ import annotations

from pipeline.methods.adapter_method import AdapterMethod
from pipeline.methods.houlsby import HOULSBY, PFEIFFER
from pipeline.methods.ia3 import IA3
from pipeline.methods.lora import LORA
from pipeline.methods.pal import PAL
from pipeline.methods.prefix import PREFIX
from pipeline.methods.prefix_tuning import PREFIX_TUNING
from pipeline.settings.adapter_kinds import AdapterKind

METHODS: dict[AdapterKind, AdapterMethod] = {
    "houlsby": HOULSBY,
    "pfeiffer": PFEIFFER,
    "pal": PAL,
    "prefix": PREFIX,
    "prefix-tuning": PREFIX_TUNING,
    "lora": LORA,
    "ia3": IA3,
}
