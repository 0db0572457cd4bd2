"""A store with adapters and fusions that several files serve or explain, trained once a session."""

import dataclasses
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from pipeline.records.run_record import RunRecord
from pipeline.runs.workspace import Workspace
from pipeline.settings.recipe import Recipe
from stages.extract import extract
from stages.fuse import fuse


@dataclass(frozen=True)
class Shop:
    """``adapters`` of films, meals and pairs, and ``fusions`` of films (gated) and pairs (anchored)."""

    workspace: Workspace
    adapters: dict[str, RunRecord]
    fusions: dict[str, RunRecord]

    @property
    def store(self) -> Path:
        return self.workspace.store_root

    def copied(self, folder: Path) -> Workspace:
        """A copy that a test may change."""
        shutil.copytree(self.store, folder / "store")
        return dataclasses.replace(self.workspace, store_root=folder / "store", reports=folder / "reports")


@pytest.fixture(scope="session")
def shop(
    tmp_path_factory: pytest.TempPathFactory,
    backbone_folder: Path,
    data_folder: Path,
    quick: Callable[..., Recipe],
) -> Shop:
    root = tmp_path_factory.mktemp("shop")
    workspace = Workspace(str(backbone_folder), data_folder, root / "store", root / "reports")
    tasks = ("films", "meals", "pairs")
    adapters = {task: extract(task, quick("adapter", learning_rate=3e-2), workspace, seed=1).record for task in tasks}
    forms = {
        "films": {"fusion": "gated", "gate_start": "even", "learning_rate": 3e-2, "epochs": 16},
        "pairs": {"fusion": "anchored", "fusion_rank": 4, "learning_rate": 5e-2, "epochs": 8},
    }
    fusions = {task: fuse(task, quick("fusion", **form), workspace, seed=1).record for task, form in forms.items()}
    assert all(fusion.dev > adapters[task].dev for task, fusion in fusions.items())  # commands use the better model
    return Shop(workspace, adapters, fusions)
