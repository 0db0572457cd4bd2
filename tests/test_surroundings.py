"""The project needs no home folder, no temporary folder, and no room on disks that hold none of its files."""

import ctypes
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from pipeline.data.tokens import tokenise
from pipeline.models.backbone import Backbone
from pipeline.stats import metrics
from tests import forked

ROOT = Path(__file__).parent.parent


@pytest.fixture
def homeless(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No home folder, as for a user unknown to the system, and no temporary folder."""

    def nowhere() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found")

    for name in ("HOME", "XDG_CACHE_HOME", "PIPELINE_CACHE", "HF_HOME", "HF_METRICS_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    monkeypatch.setattr("tempfile.gettempdir", nowhere)
    monkeypatch.setattr("tempfile._gettempdir", nowhere)
    monkeypatch.chdir(tmp_path)


def test_scores_need_no_folder(homeless: None, tmp_path: Path) -> None:
    metrics.load_metric.cache_clear()
    metric = metrics.load_metric("accuracy")
    assert metric.compute(predictions=[1.0, 0.0], references=[1.0, 1.0]) == {"accuracy": 0.5}
    metric.add_batch(predictions=[1.0], references=[1.0])
    assert metric.compute() == {"accuracy": 1.0}
    assert not list(tmp_path.iterdir())


def test_texts_are_tokenised_without_a_home(homeless: None, backbone: Backbone, tmp_path: Path) -> None:
    import pandas as pd

    rows = pd.DataFrame({"id": ["0"], "text_a": ["the film is good"], "label": [1]})
    assert len(tokenise(rows, backbone.tokenizer, "cross", 16).a[0]) == 6
    assert not list(tmp_path.iterdir())


def without(*lines: str) -> str:
    """Code that runs ``lines``, then ``python -m pipeline``."""
    return "\n".join(["import runpy, tempfile", *lines, "runpy.run_module('pipeline', run_name='__main__')"])


def command(code: str, *arguments: str) -> tuple[int, str]:
    environment = {key: value for key, value in os.environ.items() if key not in ("MPLCONFIGDIR", "XDG_CONFIG_HOME")}
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=ROOT,
        env={**environment, "HOME": "/dev/null"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    return done.returncode, done.stderr


@pytest.mark.long
def test_figures_that_have_nowhere_to_keep_settings_say_so() -> None:
    status, error = command(without("def mkdtemp(**_): raise OSError", "tempfile.mkdtemp = mkdtemp"), "report")
    assert status == 2
    assert error.splitlines()[-1].startswith("error: Matplotlib requires access to a writable")
    assert "set the MPLCONFIGDIR environment variable to a writable directory" in error.splitlines()[-1]


@pytest.mark.long
def test_torch_without_any_temporary_folder_says_so() -> None:
    status, error = command(
        without("tempfile._candidate_tempdir_list = lambda: ['/dev/null']"), *["extract", "--task", "sst"]
    )
    assert status == 2
    assert error.splitlines() == [
        "error: No usable temporary directory found in ['/dev/null']: free some space in one of these, or name another"
        " folder in TMPDIR. Finished work is kept; fix this and run the same command again"
    ]


@dataclass(frozen=True)
class Mounted:
    """Mounts a file system at ``folder`` that only the process sees."""

    folder: str
    options: str

    def __call__(self) -> None:
        new_namespace = 0x00020000  # CLONE_NEWNS of Linux's sched.h
        assert ctypes.CDLL(None).unshare(new_namespace) == 0
        for how in (["--make-rprivate", "/"], ["-t", "tmpfs", "-o", self.options, "none", self.folder]):
            subprocess.run(["mount", *how], check=True)


def mounted(folder: Path, options: str, *arguments: str) -> tuple[int, str]:
    return forked.run(arguments, prepare=Mounted(str(folder), options))


def may_mount() -> bool:
    line = ["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"]
    return shutil.which("unshare") is not None and subprocess.run(line, capture_output=True).returncode == 0


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.skipif(not may_mount(), reason="may not mount file systems")
@pytest.mark.parametrize("option", ["store", "reports"])
def test_a_read_only_folder_is_told_before_training(
    option: str, backbone_folder: Path, data_folder: Path, tmp_path: Path
) -> None:
    places = {name: tmp_path / name for name in ("store", "reports")}
    places[option].mkdir()
    options = {"task": "films", "backbone": backbone_folder, "data": data_folder, "bottleneck": 8, **places}
    arguments = (f"--{name}={value}" for name, value in options.items())
    status, error = mounted(places[option], "ro", "extract", *arguments)
    assert status == 2
    assert f"error: cannot write {places[option]}" in error
    assert "the file system is read-only" in error
    assert "epoch" not in error


@pytest.mark.long
def test_an_installed_wheel_has_all_that_its_commands_read(tmp_path: Path) -> None:
    """In an environment that has the packages of this one but not the source."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}

    def done(*command: object) -> str:
        found = subprocess.run([*map(str, command)], cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert found.returncode == 0, found.stderr
        return found.stdout

    source = shutil.copytree(  # building leaves folders in it
        ROOT, tmp_path / "source", ignore=shutil.ignore_patterns(".*", "build", "*.egg-info", "reports", "benchmarks")
    )
    done(sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", tmp_path, source)
    (wheel,) = tmp_path.glob("*.whl")
    shutil.rmtree(source)
    done(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv")
    (packages,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    done(sys.executable, "-m", "pip", "install", "--no-deps", "--target", packages, wheel)
    (packages / "others.pth").write_text(f"{Path(pytest.__file__).parent.parent}\n")
    python = tmp_path / "venv" / "bin" / "python"
    assert done(python, "-c", "import stages; print(stages.__file__)").startswith(str(packages))
    assert "extract" in done(python, "-m", "pipeline", "--help")
    for verb, shipped in (("studies", "default"), ("tasks", "sst")):
        assert shipped in done(python, "-m", "pipeline", verb, "list")
