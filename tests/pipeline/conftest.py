from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.methods.saved import SavedModules
from pipeline.models.backbone import Backbone
from tests.pipeline.methods.adapted import add_adapter, randomise, save_adapter, saved_modules


@pytest.fixture
def saved(backbone: Backbone, tmp_path: Path) -> Callable[..., SavedModules]:
    """A folder with an adapter of random weights."""

    def save(name: str, seed: int, sites: str = "houlsby", bottleneck: int = 8) -> SavedModules:
        encoder = backbone.load()
        add_adapter(encoder, name, sites, bottleneck)  # type: ignore[arg-type]
        randomise(encoder, f"adapters.{name}", seed=seed)
        save_adapter(encoder, name, tmp_path / f"{name}-{seed}")
        return saved_modules(name, tmp_path / f"{name}-{seed}", adapter=sites, bottleneck=bottleneck)

    return save
