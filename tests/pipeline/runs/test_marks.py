"""What was once trained otherwise has another name now, and all else keeps its own."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.runs.identity import CORRECTIONS, Facts
from pipeline.runs.request import RunRequest
from pipeline.runs.training_run import TrainingRun
from pipeline.runs.workspace import Workspace
from pipeline.settings.recipe import Recipe
from pipeline.settings.rows import Method
from tests.nano import save_backbone

Quick = Callable[..., Recipe]
MARKS = ("gates", "probed", "below", "norms")
GATED = {"fusion": "gated", "own_adapter": "none"}


@pytest.mark.parametrize(
    ("trainable", "settings", "expected"),
    [
        ("fusion", {**GATED, "gate": "vector"}, {"gates": "without decay"}),
        ("fusion", {**GATED, "gate": "scalar"}, {}),
        ("fusion", {"fusion": "anchored"}, {}),
        ("adapter", {"adapter": "prefix-tuning", "drop_layers": "0"}, {"below": "frozen"}),
        ("adapter", {"adapter": "unipelt", "drop_layers": "0"}, {"below": "frozen"}),
        ("adapter", {"adapter": "prefix-tuning", "drop_layers": "1"}, {}),
        ("adapter", {"adapter": "prefix-tuning"}, {}),
        ("adapter", {"adapter": "houlsby", "drop_layers": "0", "train_layernorm": True}, {}),
    ],
    ids=str,
)
def test_only_what_trains_otherwise_is_marked(
    trainable: str, settings: dict[str, Any], expected: dict[str, str], workspace: Workspace, quick: Quick
) -> None:
    assert marks(workspace, quick(trainable, **settings)) == expected


def test_modernberts_last_norm_is_marked(workspace: Workspace, quick: Quick, tmp_path: Path) -> None:
    modern = dataclasses.replace(workspace, backbone_name=str(save_backbone(tmp_path / "modern", "modernbert")))
    assert marks(modern, quick("adapter", drop_layers="0", train_layernorm=True)) == {"norms": "last"}
    assert marks(modern, quick("adapter", train_layernorm=True)) == {}


def marks(workspace: Workspace, recipe: Recipe) -> dict[str, str]:
    kind: Method = "fusion" if recipe.trainable == "fusion" else "adapter"
    identity = TrainingRun(RunRequest.single(kind, workspace.task("films"), recipe, 0), workspace).identity
    return {mark: identity[mark] for mark in MARKS if mark in identity}


@pytest.mark.parametrize(
    ("settings", "rows", "marked"),
    [
        ({"fusion": "gated", "gate_start": "probe"}, 512, False),
        ({"fusion": "gated", "gate_start": "probe"}, 513, True),
        ({"fusion": "gated", "gate_start": "even"}, 5000, False),
        ({"fusion": "standard"}, 5000, False),
    ],
    ids=str,
)
def test_gates_that_were_chosen_on_a_part_of_the_rows_are_marked(
    settings: dict[str, Any], rows: int, marked: bool, quick: Quick
) -> None:
    request: Any = SimpleNamespace(adapters=("one",))
    facts = Facts(request, quick("fusion", **settings), "bert", rows)
    (correction,) = (each for each in CORRECTIONS if each.key == "probed")
    assert correction.concerns(facts) is marked
