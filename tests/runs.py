"""Runs that train for one task, or one model for several tasks at once."""

import dataclasses
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from pipeline.runs.training_run import TrainingRun
from pipeline.runs.workspace import Part, RunRequest, Workspace
from pipeline.settings.recipe import Recipe
from pipeline.training import fit


def single_run(workspace: Workspace, kind: Any, task: str, recipe: Recipe, seed: int, **rest: Any) -> TrainingRun:
    rest.setdefault("keep_weights", kind == "full")
    return TrainingRun(RunRequest.single(kind, workspace.task(task), recipe, seed, **rest), workspace)


def joint_run(
    workspace: Workspace,
    tasks: Sequence[str],
    recipes: Mapping[str, Recipe],
    *,
    limits: Mapping[str, int | None],
    **rest: Any,
) -> TrainingRun:
    parts = (Part(workspace.task(task), recipes[task], limits[task]) for task in tasks)
    return TrainingRun(RunRequest("multitask", tuple(parts), **rest), workspace)


def again(workspace: Workspace) -> Workspace:
    """The same places as a later command sees them, with nothing remembered."""
    return dataclasses.replace(workspace)


def places(workspace: Workspace) -> list[str]:
    """The options of a command for the folders of ``workspace``."""
    return [
        f"--backbone={workspace.backbone_name}", f"--data={workspace.data}",
        f"--store={workspace.store_root}", f"--reports={workspace.reports}",
    ]  # fmt: skip


_kept: dict[tuple[object, ...], Path] = {}
_folder = tempfile.TemporaryDirectory(prefix="kept-")


@contextmanager
def trained_once() -> Iterator[None]:
    """Train each run once per session; later, in any store, copy its record and artifact instead.

    Use it for what tests build on, not to test training: a run's name identifies everything but the code.
    """
    original = TrainingRun._train

    def train(run: TrainingRun, *given: Any) -> None:
        place, key = run.workspace, (run.name, run.request.keep_weights, run.backbone.name)
        record, artifact = place.ledger.folder(run.name), place.store.root / f"{run.kind.artifact}s/{run.task.name}"
        folders = {"record": record, **({"artifact": artifact / run.name} if run.kind.artifact else {})}
        if key not in _kept:
            original(run, *given)
            _kept[key] = Path(tempfile.mkdtemp(dir=_folder.name))
            for name, folder in folders.items():
                shutil.copytree(folder, _kept[key] / name)
            return
        for name, folder in folders.items():
            shutil.copytree(_kept[key] / name, folder, dirs_exist_ok=True)
        saved = json.loads((record / "run.json").read_text())
        artifact_folder = str(folders["artifact"]) if "artifact" in folders else None
        (record / "run.json").write_text(json.dumps(saved | {"artifact": artifact_folder}))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrainingRun, "_train", train)
        yield


class Stopped(Exception):
    """Simulates a kill."""


def stop_at(monkeypatch: pytest.MonkeyPatch, step: int) -> list[int]:
    """Make training stop in optimiser step ``step``, from 1; the list grows with every step begun, over all runs."""
    original = fit._backward
    begun: list[int] = []

    def stopping(*arguments: Any) -> Any:
        begun.append(len(begun) + 1)
        if begun[-1] == step:
            raise Stopped
        return original(*arguments)

    monkeypatch.setattr(fit, "_backward", stopping)
    return begun


def final_numbers(folder: Path) -> dict[str, object]:
    """Everything in the finished runs that must not depend on how often they were stopped."""
    numbers: dict[str, object] = {}
    for file in sorted((folder / "reports" / "runs").glob("*/run.json")):
        record = json.loads(file.read_text())
        curve = pd.read_csv(file.parent / "curve.csv").drop(columns=["seconds"], errors="ignore")
        predictions = pd.read_parquet(file.parent / "predictions.parquet")
        kept = ("best_epoch", "scores", "unchanged", "artifact_digest", "weights_sha256", "identity")
        numbers[record["run"]] = ([record[key] for key in kept], curve.to_csv(), predictions.to_csv())
    return numbers
