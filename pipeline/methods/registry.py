"""The adapter kinds under the names that recipes use, and what each provides."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Protocol

from transformers import PreTrainedModel

from pipeline.methods.houlsby import HOULSBY, PFEIFFER
from pipeline.methods.ia3 import IA3
from pipeline.methods.lora import LORA
from pipeline.methods.pal import PAL
from pipeline.methods.prefix import PREFIX
from pipeline.methods.prefix_tuning import PREFIX_TUNING
from pipeline.methods.saved import SavedModules
from pipeline.settings.parts import AdapterKind
from pipeline.settings.recipe import Recipe


class AdapterMethod(Protocol):
    """How a kind of adapter is added to a backbone, saved and loaded.

    All parameters that it adds train (``module_parameter_names``). Its settings, and whether fusion can mix it, stand
    in ``pipeline.settings.parts.py``.
    """

    def add(self, backbone: PreTrainedModel, tasks: Sequence[str], recipe: Recipe, /) -> None:
        """Put a fresh adapter for each of ``tasks`` into every layer of ``backbone`` but the dropped ones.

        Raises:
            PipelineError: the backbone has no room for it, or is of a family that cannot have it.
        """

    def save(self, backbone: PreTrainedModel, task: str, folder: Path, /) -> None:
        """Write the adapter of ``task`` into ``folder``."""

    def load(self, backbone: PreTrainedModel, saved: SavedModules, drop_layers: Collection[int], /) -> None:
        """Load a saved adapter, without its part in ``drop_layers``.

        Raises:
            PipelineError: the files are not what the recipe makes.
        """


METHODS: dict[AdapterKind, AdapterMethod] = {
    "houlsby": HOULSBY,
    "pfeiffer": PFEIFFER,
    "pal": PAL,
    "prefix": PREFIX,
    "prefix-tuning": PREFIX_TUNING,
    "lora": LORA,
    "ia3": IA3,
}
