import signal
import sys
from collections.abc import Callable, Iterator
from functools import cache

import pytest

from pipeline.methods.saved import SavedModules
from pipeline.models.backbone import Backbone
from pipeline.system.process import SIGNALS, handle_signals
from tests.pipeline.methods.adapted import add_adapter, randomise, save_adapter, saved_modules


@pytest.fixture(scope="session")
def saved(backbone: Backbone, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., SavedModules]:
    """A folder with an adapter of random weights; tests that change it make a copy."""

    @cache
    def save(
        name: str, seed: int, sites: str = "houlsby", bottleneck: int = 8, drop_layers: tuple[int, ...] = ()
    ) -> SavedModules:
        encoder, folder = backbone.load(), tmp_path_factory.mktemp("saved")
        add_adapter(encoder, name, sites, bottleneck, drop_layers)
        randomise(encoder, f"adapters.{name}", seed=seed)
        save_adapter(encoder, name, folder)
        return saved_modules(name, folder, adapter=sites, bottleneck=bottleneck, drop_layers=drop_layers)

    return save


@pytest.fixture
def command_handlers() -> Iterator[None]:
    """Signals as a command handles them, even where the tests run under nohup."""
    before, hook = {number: signal.signal(number, signal.SIG_DFL) for number in SIGNALS}, sys.unraisablehook
    handle_signals()
    yield
    sys.unraisablehook = hook
    for number, handler in before.items():
        signal.signal(number, handler)
