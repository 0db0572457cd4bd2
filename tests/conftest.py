"""Shared fixtures: a nano backbone with random weights and small generated tasks, made on the spot."""

from __future__ import annotations

import gc
import os
import platform
import random
import shutil
import signal
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pipeline.system import process
from tests.nano import FAMILIES, add_pair_task, save_backbone, write_tasks

# Set before torch and transformers are imported anywhere.
os.environ["HF_HUB_OFFLINE"] = "1"
process.set_up()
os.fsync = lambda _: None  # no test outlives a power cut
# On a CPU with bf16 instructions precision "auto" would be bf16, in which results do not agree to six digits.
if platform.machine() in ("x86_64", "AMD64"):
    os.environ.setdefault("ATEN_CPU_CAPABILITY", "avx2")

if TYPE_CHECKING:
    from playwright.sync_api import Browser
    from transformers import PreTrainedModel

    from pipeline.models.backbone import Backbone
    from pipeline.runs.workspace import Workspace
    from pipeline.settings.recipe import Recipe


def pytest_configure() -> None:
    """Make commands that tests start obey Ctrl-C, even if the tests run as a background job, which ignores it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as long those cases of a test marked ``covering(n)`` that combine no n values for the first time.

    Files with slow tests come first, so that no worker is left alone with one at the end.
    """
    seen: dict[str, set[object]] = defaultdict(set)
    # Shuffled: in the order of a product, the first value of a parameter would meet all values of another.
    for item in random.Random(0).sample(items, len(items)):
        if (mark := item.get_closest_marker("covering")) and isinstance(item, pytest.Function):
            values = [(name, _equal(value)) for name, value in item.callspec.params.items()]
            met = {*combinations(values, mark.args[0])}
            before = seen[item.nodeid.partition("[")[0]]
            if met <= before:
                item.add_marker("long")
            before |= met
    slow = {item.path for item in items if item.get_closest_marker("slow") and not item.get_closest_marker("long")}
    items.sort(key=lambda item: item.path not in slow)


def _equal(value: object) -> object:
    return value if isinstance(value, str | int | float | None) else id(value)


_modules = 0


def pytest_runtest_setup() -> None:
    """Exclude imported objects from garbage collection: every run collects, and would walk a million of them."""
    global _modules
    if len(sys.modules) != _modules:
        gc.freeze()
        _modules = len(sys.modules)


BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="session", autouse=True)
def token_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    os.environ["PIPELINE_CACHE"] = str(tmp_path_factory.mktemp("tokens"))


@pytest.fixture(scope="session")
def backbone_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_backbone(tmp_path_factory.mktemp("backbone"))


@pytest.fixture(scope="session")
def data_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tasks(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="session")
def backbone(backbone_folder: Path) -> Backbone:
    from pipeline.models.backbone import open_backbone

    return open_backbone(str(backbone_folder))


@pytest.fixture(scope="session")
def families(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Backbone]:
    """A nano backbone of every supported family."""
    from pipeline.models.backbone import open_backbone

    folder = tmp_path_factory.mktemp("families")
    return {family: open_backbone(str(save_backbone(folder / family, family))) for family in FAMILIES}


@pytest.fixture
def encoder(backbone: Backbone) -> PreTrainedModel:
    """A fresh copy of the nano encoder."""
    return backbone.load()


@pytest.fixture
def workspace(backbone_folder: Path, data_folder: Path, tmp_path: Path) -> Workspace:
    from pipeline.runs.workspace import Workspace

    return Workspace(str(backbone_folder), data_folder, tmp_path / "store", tmp_path / "reports")


@pytest.fixture(scope="module")
def place(backbone_folder: Path, data_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A workspace that the tests of a file share."""
    from pipeline.runs.workspace import Workspace

    folder = tmp_path_factory.mktemp("place")
    return Workspace(str(backbone_folder), data_folder, folder / "store", folder / "reports")


@pytest.fixture
def trained_once() -> Iterator[None]:
    """Copy a run that this test trains from an earlier test of this session that has trained the same."""
    from tests import runs

    with runs.trained_once():
        yield


@pytest.fixture
def forbid_training(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """A function; once it is called, any training step fails the test."""

    def forbid() -> None:
        from pipeline.training import fit

        monkeypatch.setattr(fit, "_backward", lambda *_: pytest.fail("trained"))

    return forbid


@pytest.fixture
def no_training(forbid_training: Callable[[], None]) -> None:
    """Any training step fails the test."""
    forbid_training()


@pytest.fixture(scope="session")
def quick() -> Callable[..., Recipe]:
    """A recipe for a few steps: ``quick("adapter", epochs=1)``."""
    from pipeline.settings.recipe import Recipe

    def make(trainable: str, **values: object) -> Recipe:
        settings = {"epochs": 2, "batch_size": 16, "bottleneck": 8, "learning_rate": 5e-3, **values}
        return Recipe.parse({"trainable": trainable, **settings}, "test")

    return make


@pytest.fixture
def same(data_folder: Path, tmp_path: Path) -> Path:
    """The tasks, and a task "same" of two classes: whether the score of a pair is above 3.5."""
    folder = shutil.copytree(data_folder, tmp_path / "with-same")
    add_pair_task(folder, "same", [3.5], ["no", "yes"])
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """The installed Chromium."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        pytest.skip(f"no browser: none of {', '.join(BROWSERS)} is installed")
    with playwright.sync_playwright() as started:
        # No sandbox: root and most containers cannot have one, and the pages are ours.
        browser = started.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs the real command in this process; returns its status, stdout and stderr."""
    from pipeline.cli.app import main

    def command(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        status = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return command
