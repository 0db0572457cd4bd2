"""The commands that write, each small enough to be killed hundreds of times."""

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from tests.forked import run
from tests.nano import save_backbone, write_tasks

STUDY = """
name = "killed"
methods = ["full", "adapter", "fusion"]
targets = ["films"]
sources = ["meals"]
seeds = [3]
[recipe]
bottleneck = 8
epochs = 3
"""
RECIPE = 'gate_start = "even"\nbottleneck = 8\nepochs = 4\n'


@dataclass(frozen=True)
class Scenario:
    """A command, whose words may name ``{root}``, the folder that it works in, and others of :func:`write_inputs`.

    Args:
        trained: whether the folder already holds what :func:`train` has trained.
        places: the options for folders that it takes.
        ended: how it is refused once it has done its work, if it cannot be given twice.
    """

    words: str
    trained: bool = True
    places: tuple[str, ...] = ("store", "reports")
    ended: str | None = None

    @property
    def needs_training(self) -> bool:
        return self.trained or ".tar.xz" in self.words

    def arguments(self, root: Path, names: Mapping[str, str]) -> list[str]:
        folders = [names.get(place, str(root / place)) for place in self.places]
        options = [f"--{place}={folder}" for place, folder in zip(self.places, folders, strict=True)]
        return [*(word.format(root=root, **names) for word in self.words.split()), *options]


_ALL = ("backbone", "data", "store", "reports")
_SHORT = "--recipe={inputs}/recipe.toml"

SCENARIOS = {
    "extract": Scenario(f"extract --task films {_SHORT}", trained=False, places=_ALL),
    "fuse": Scenario(f"fuse --target meals --fusion gated {_SHORT}", places=_ALL),
    "fuse experts": Scenario(f"fuse --target meals --sources films --experts 2 {_SHORT}", places=_ALL),
    "compare": Scenario("compare --study={inputs}/study.toml", trained=False, places=_ALL),
    "report": Scenario("report --study=killed", places=("reports",)),
    "prune": Scenario("prune --target films --keep 1 --using {fusion}", places=_ALL),
    "pretrain": Scenario(f"pretrain --tasks films --output={{root}}/out/backbone {_SHORT}", trained=False, places=_ALL),
    "predict": Scenario(
        "predict --target films --input={inputs}/rows.csv --output={root}/out/answers.csv", places=_ALL
    ),
    "ensemble": Scenario("ensemble --target films --name both", places=("data", "reports")),
    "export onnx": Scenario("export --target films --output={root}/out/onnx", places=_ALL),
    "export adapterhub": Scenario(
        "export --target films --using adapter --format adapterhub --output={root}/out/hub", places=_ALL
    ),
    "store export": Scenario("store export {fusion} {root}/out/films.tar.xz", places=("store",)),
    "store import": Scenario("store import {inputs}/films.tar.xz", trained=False, places=("store",)),
    "store remove": Scenario("store remove {spare}", places=("store",), ended="no artifact"),
    "runs remove": Scenario("runs remove {spare} --force", ended="no run"),
    "runs export": Scenario("runs export {root}/out/runs.tar.xz --study=killed"),
    "runs import": Scenario("runs import {inputs}/runs.tar.xz", trained=False, places=("reports",)),
    "tasks new": Scenario("tasks new {inputs}/tickets.csv --data={root}/out/data", places=(), ended="already"),
}


def write_inputs(inputs: Path) -> dict[str, str]:
    """Make what the commands read. Returns the folders that a command's words may name."""
    backbone, data = save_backbone(inputs / "backbone"), write_tasks(inputs / "data")
    shutil.copytree(data / "meals", data / "songs")  # a second source, so that there is one to prune
    (data / "songs" / "task.toml").write_text((data / "meals" / "task.toml").read_text().replace("meals", "songs"))
    (inputs / "study.toml").write_text(STUDY)
    (inputs / "recipe.toml").write_text(RECIPE)
    films = pd.read_csv(data / "films" / "train.csv")
    films[["id", "sentence"]].to_csv(inputs / "rows.csv", index=False)
    films[["sentence", "label"]].to_csv(inputs / "tickets.csv", index=False)
    return {"inputs": str(inputs), "backbone": str(backbone), "data": str(data)}


def train(trained: Path, names: Mapping[str, str]) -> dict[str, str]:
    """Make what a user has trained before, and archives of it.

    Returns:
        What else a command's words may name: the runs ``fusion`` and ``spare``, an adapter that nothing needs.
    """

    def result_of(words: str) -> str:
        status, output = run(Scenario(f"{words} {_SHORT} --json", places=_ALL).arguments(trained, names))
        assert status == 0, output
        return str(json.loads(output.splitlines()[-1])["run"])

    spare = result_of("extract --task films --seed 1")
    for task in ("films", "meals", "songs"):
        result_of(f"extract --task {task}")
    runs = {"spare": spare, "fusion": result_of("fuse --target films --fusion gated")}
    for command in (
        SCENARIOS["compare"],
        Scenario("store export {fusion} {inputs}/films.tar.xz", places=("store",)),
        Scenario("runs export {inputs}/runs.tar.xz --study=killed"),
    ):
        status, output = run(command.arguments(trained, {**names, **runs}))
        assert status == 0, output
    return runs
