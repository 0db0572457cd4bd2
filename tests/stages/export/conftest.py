import json
import shutil
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


@pytest.fixture(scope="session")
def unusual(shallow: Callable[[str], Backbone], tmp_path_factory: pytest.TempPathFactory) -> Backbone:
    """A backbone whose tokenizer cuts and pads on the left, and reads "[SEP]" in a text as other words."""
    folder = Path(shutil.copytree(shallow("bert").name, tmp_path_factory.mktemp("unusual") / "backbone"))
    file = folder / "tokenizer_config.json"
    settings = {"truncation_side": "left", "padding_side": "left", "split_special_tokens": True}
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))
    return open_backbone(str(folder))
