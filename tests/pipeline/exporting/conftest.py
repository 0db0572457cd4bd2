from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import AutoConfig, AutoModel

from pipeline.models.backbone import Backbone, open_backbone
from tests.nano import save_backbone


@pytest.fixture(scope="session")
def shallow(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Backbone]:
    """Nano backbones of a family with one layer, which are exported in half the time."""
    opened: dict[str, Backbone] = {}

    def of(family: str) -> Backbone:
        if family not in opened:
            folder: Path = save_backbone(tmp_path_factory.mktemp(family), family)
            config = AutoConfig.from_pretrained(folder)
            config.num_hidden_layers = config.n_layers = 1
            AutoModel.from_pretrained(folder, config=config).save_pretrained(folder)
            opened[family] = open_backbone(str(folder))
        return opened[family]

    return of
