"""What was once trained otherwise has another name now, and all else keeps its own."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.data.tasks import find_task
from pipeline.runs.identity import CORRECTIONS, Correction, Facts
from pipeline.runs.request import Part, RunRequest
from pipeline.runs.training_run import TrainingRun
from pipeline.runs.workspace import Workspace
from pipeline.settings.kinds import KINDS
from pipeline.settings.recipe import Recipe
from pipeline.settings.resolve import resolve
from pipeline.settings.rows import Method
from pipeline.stats.probe import LEAST_ROWS
from tests.nano import save_backbone

Quick = Callable[..., Recipe]
ADAPTERS: Any = ("one",)


def facts(
    kind: Method,
    settings: dict[str, Any] | None = None,
    *,
    start: str | None = None,
    family: str = "bert",
    rows: int = 96,
    tasks: int = 1,
    **request: Any,
) -> Facts:
    """Those of a run on so many tasks of pairs; ``start`` is the kind of the run that it continues."""
    task = find_task("sts")
    recipe = Recipe.parse({"trainable": KINDS[kind].trains[0], **(settings or {})}, "test")
    begun: Any = None if start is None else SimpleNamespace(kind=start)
    asked = RunRequest(kind, (Part(task, recipe),) * tasks, 0, start=begun, **request)
    return Facts(asked, resolve(recipe, task, "fp32", joint=kind == "multitask"), family, rows)


COSINE = {"head": "cosine", "encoding": "siamese"}
PREFIXES = {"adapter": "prefix-tuning", "drop_layers": "0"}
NORMS = {"drop_layers": "0", "train_layernorm": True}
COPIES = {"trainable": "full+adapter", "train_layernorm": True}
GATED = {"fusion": "gated", "own_adapter": "none"}
PROBED = {"fusion": "gated", "gate_start": "probe"}
PFEIFFER = {"adapter": "pfeiffer"}
OWN, OTHER = (SimpleNamespace(manifest=SimpleNamespace(task=task)) for task in (find_task("sts").name, "quora"))

CASES: dict[str, tuple[list[Facts], list[Facts]]] = {
    "probe": (
        [
            facts("adapter", COSINE, adapters=ADAPTERS),
            facts("fusion", {**COSINE, **PROBED}, adapters=ADAPTERS),
            facts("fusion", {**COSINE, "own_adapter": "warm", "gate_start": "even"}, adapters=ADAPTERS),
        ],
        [
            facts("adapter", COSINE),
            facts("adapter", COSINE, adapters=ADAPTERS, in_turn=True),
            facts("adapter", {"encoding": "siamese", "head": "difference"}, adapters=ADAPTERS),
            facts("fusion", {**COSINE, **GATED}, adapters=ADAPTERS),
            facts("merge", COSINE, adapters=ADAPTERS),
        ],
    ),
    "ascent": (
        [facts("full", {"smart": 1.0}), facts("adapter", {"smart": 0.1, "smart_direction": "reference"})],
        [facts("full"), facts("full", {"smart": 1.0, "smart_direction": "gradient"})],
    ),
    "head": (
        [
            facts("sequential", start="full"),
            facts("multitask", start="full"),
            facts("adapter", adapters=ADAPTERS),
            facts("adapter", adapters=ADAPTERS, in_turn=True),
            facts("fusion", {"own_adapter": "warm"}, adapters=ADAPTERS),
        ],
        [
            facts("full"),
            facts("full", start="frozen"),  # it goes on with that head
            facts("adapter"),
            facts("fusion", adapters=ADAPTERS),
            facts("merge", adapters=ADAPTERS),
        ],
    ),
    "heads": (
        [facts("multitask", start="full")],
        [facts("multitask"), facts("sequential", start="full")],
    ),
    "gates": (
        [facts("fusion", {**GATED, "gate": "vector"})],
        [
            facts("fusion", {**GATED, "gate": "scalar"}),
            facts("fusion", {"fusion": "anchored"}),
            facts("fusion", {"fusion": "standard"}),
        ],
    ),
    "l2_sp": (
        [
            facts("fusion", {**GATED, "l2_sp": 0.1}),
            facts("fusion", {"fusion": "standard", "l2_sp": 0.1}),
        ],
        [
            facts("fusion", {"fusion": "anchored", "l2_sp": 0.1}),
            facts("fusion", GATED),
            facts("full", {"l2_sp": 0.1}),
        ],
    ),
    "l2_sp_copies": (
        [facts("multitask", {**COPIES, "l2_sp": 0.1}, tasks=2)],
        [
            facts("multitask", {**COPIES, "l2_sp": 0.1}),
            facts("multitask", {"l2_sp": 0.1}, tasks=2),
            facts("multitask", COPIES, tasks=2),
        ],
    ),
    "perturbed": (
        [facts("full", {"smart": 1.0, "second_encoder": each}) for each in ("static", "tuned")],
        [facts("full", {"smart": 1.0}), facts("full", {"second_encoder": "static"})],
    ),
    "probed": (
        [facts("fusion", PROBED, adapters=ADAPTERS, rows=513)],
        [
            facts("fusion", PROBED, adapters=ADAPTERS, rows=512),
            facts("fusion", PROBED, rows=513),
            facts("fusion", {**PROBED, "gate_start": "even"}, adapters=ADAPTERS, rows=5000),
            facts("fusion", {"fusion": "standard"}, adapters=ADAPTERS, rows=5000),
        ],
    ),
    "own": (
        [facts("fusion", {**PROBED, **GATED}, adapters=(OTHER, OWN))],
        [
            facts("fusion", {**PROBED, **GATED}, adapters=(OTHER,)),
            facts("fusion", {**PROBED, **GATED}, adapters=(OTHER, OWN), rows=LEAST_ROWS - 1),
            facts("fusion", {**GATED, "gate_start": "even"}, adapters=(OTHER, OWN)),
            facts("fusion", {**PROBED, "own_adapter": "frozen"}, adapters=(OTHER, OWN)),
            facts("fusion", {"fusion": "standard"}, adapters=(OTHER, OWN)),
        ],
    ),
    "ranked": (
        [
            facts("fusion", {**PROBED, **PFEIFFER}, adapters=(OTHER,) * 33),
            facts("fusion", {**PFEIFFER, "fusion": "standard", "best_sources": 8}, adapters=(OTHER,) * 17),
            facts("fusion", {**PFEIFFER, "fusion": "standard", "best_sources": 10}, adapters=(OTHER,) * 21),
        ],
        [
            facts("fusion", {**PROBED, **PFEIFFER}, adapters=(*(OTHER,) * 32, OWN)),
            facts("fusion", {**PROBED, **PFEIFFER}, adapters=(OTHER,) * 33, rows=LEAST_ROWS - 1),
            facts("fusion", PROBED, adapters=(OTHER,) * 33),
            facts("fusion", {**PFEIFFER, "fusion": "standard", "best_sources": 10}, adapters=(OTHER,) * 20),
            facts("fusion", {**PFEIFFER, "fusion": "standard"}, adapters=(OTHER,) * 33),
            facts("adapter", PFEIFFER, adapters=(OTHER,) * 33),
        ],
    ),
    "below": (
        [facts("adapter", PREFIXES), facts("adapter", {**PREFIXES, "adapter": "unipelt"})],
        [
            facts("adapter", {**PREFIXES, "drop_layers": "1"}),
            facts("adapter", {"adapter": "prefix-tuning"}),
            facts("adapter", {**PREFIXES, "adapter": "houlsby"}),
        ],
    ),
    "norms": (
        [facts("adapter", NORMS, family="modernbert")],
        [
            facts("adapter", NORMS),
            facts("adapter", {"train_layernorm": True}, family="modernbert"),
            facts("adapter", {"drop_layers": "0"}, family="modernbert"),
        ],
    ),
}
"""By correction runs that it concerns, and others that are nearly so."""


@pytest.mark.parametrize("correction", CORRECTIONS, ids=lambda correction: correction.key)
def test_only_what_trains_otherwise_is_marked(correction: Correction) -> None:
    concerned, others = CASES[correction.key]
    assert concerned and others
    assert [correction.concerns(each) for each in concerned] == [True] * len(concerned)
    assert [correction.concerns(each) for each in others] == [False] * len(others)


@pytest.mark.parametrize(
    ("trainable", "settings", "expected"),
    [
        ("fusion", {**GATED, "gate": "vector"}, {"gates": "without decay"}),
        ("fusion", {**GATED, "gate": "scalar"}, {}),
        ("adapter", PREFIXES, {"below": "frozen"}),
        ("adapter", {"adapter": "prefix-tuning"}, {}),
    ],
    ids=str,
)
def test_the_identity_of_a_run_holds_its_marks(
    trainable: str, settings: dict[str, Any], expected: dict[str, str], workspace: Workspace, quick: Quick
) -> None:
    assert marks(workspace, quick(trainable, **settings)) == expected


def test_modernberts_last_norm_is_marked(workspace: Workspace, quick: Quick, tmp_path: Path) -> None:
    modern = dataclasses.replace(workspace, backbone_name=str(save_backbone(tmp_path / "modern", "modernbert")))
    assert marks(modern, quick("adapter", **NORMS)) == {"norms": "last"}
    assert marks(modern, quick("adapter", train_layernorm=True)) == {}


def marks(workspace: Workspace, recipe: Recipe) -> dict[str, str]:
    kind: Method = "fusion" if recipe.trainable == "fusion" else "adapter"
    identity = TrainingRun(RunRequest.single(kind, workspace.task("films"), recipe, 0), workspace).identity
    return {each.key: identity[each.key] for each in CORRECTIONS if each.key in identity}
