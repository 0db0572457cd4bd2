"""A run's record names the commit of the code that made it."""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.runs import outcome
from pipeline.runs.outcome import commit_of
from pipeline.runs.workspace import Workspace
from pipeline.training import fit
from stages.pretrain import pretrain
from tests.runs import single_run


def git(folder: Path, *arguments: str) -> str:
    who = ("-c", "user.name=A", "-c", "user.email=a@b.example")
    done = subprocess.run(["git", "-C", folder, *who, *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_the_commit_is_that_of_the_code_and_only_tracked_files_change_it(tmp_path: Path) -> None:
    package, installed = tmp_path / "package", tmp_path / ".venv/site-packages/package"
    for folder in (package, installed):
        folder.mkdir(parents=True)
        (folder / "module.py").write_text("x = 1")
    assert commit_of(package) == (None, None)  # no repository
    git(tmp_path, "init")
    (tmp_path / ".gitignore").write_text(".venv")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "first")
    head = git(tmp_path, "rev-parse", "HEAD")
    (package / "notes.log").write_text("untracked")
    assert commit_of(package) == (head, False)
    assert commit_of(installed) == (None, None)  # not what this repository holds
    (package / "module.py").write_text("x = 2")
    assert commit_of(package) == (head, True)


@pytest.fixture
def nothing_cached() -> Iterator[None]:
    outcome.provenance.cache_clear()
    yield
    outcome.provenance.cache_clear()


def train_head(workspace: Workspace, quick: Any, _: Path) -> dict[str, Any]:
    return single_run(workspace, "frozen", "films", quick("head", epochs=1), seed=1, limit=16).get().provenance


def train_backbone(workspace: Workspace, quick: Any, output: Path) -> dict[str, Any]:
    return pretrain(["films"], output, quick("full", epochs=1), workspace, seed=1, limit=16).record.provenance


@pytest.mark.usefixtures("nothing_cached")
@pytest.mark.parametrize("train", [train_head, train_backbone])
def test_what_is_trained_names_the_commit_that_it_began_with(
    train: Any, workspace: Workspace, quick: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits, backward = ["before"], fit._backward

    def committing(*arguments: Any) -> Any:
        commits.append("meanwhile")
        return backward(*arguments)

    monkeypatch.setattr(outcome, "commit_of", lambda _: (commits[-1], False))
    monkeypatch.setattr(fit, "_backward", committing)
    assert train(workspace, quick, tmp_path / "output")["commit"] == "before"
    assert commits[-1] == "meanwhile"
