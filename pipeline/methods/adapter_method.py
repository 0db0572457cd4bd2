"""AdapterMethod: what every kind of adapter provides. The registry (:mod:`registry`) holds one for each kind."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Protocol

from transformers import PreTrainedModel

from pipeline.methods.saved import SavedModules
from pipeline.settings.recipe import Recipe


class AdapterMethod(Protocol):
    """How a kind of adapter is added to a backbone, saved and loaded.

    The parameters that it adds are what trains, and ``module_parameter_names`` finds them. Its name, its settings and
    whether it can be fused stand in ``pipeline/settings/adapter_kinds.py``.
    """

    def add(self, backbone: PreTrainedModel, tasks: Sequence[str], recipe: Recipe, /) -> None:
        """Put a fresh adapter for each of ``tasks`` into every layer of ``backbone`` but ``recipe.drop_layers``.

        Raises:
            PipelineError: the backbone has no room for it, or is of a family that cannot have it.
        """

    def save(self, backbone: PreTrainedModel, task: str, folder: Path, /) -> None:
        """Write the adapter of ``task`` into ``folder``."""

    def load(self, backbone: PreTrainedModel, saved: SavedModules, drop_layers: Collection[int], /) -> None:
        """Load a saved adapter into ``backbone``, without its part in ``drop_layers``.

        Raises:
            PipelineError: the files are not what the recipe makes.
        """
