"""Names of runs, pinned. A run that gets another name is trained again, and its record in a ledger is not found.

Where a test here fails, the change has renamed runs. If they train as before, mend the change: a new setting must be
absent from the identity where it is at its default. If they train otherwise, increase ``SCHEMA`` (docs/development.md).
Write new names down here only then, or where the tasks of ``tests/nano.py`` have changed.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pandas as pd
import pytest
import torch

from pipeline.data.canonical import fingerprint
from pipeline.models.backbone import Backbone, hash_tensors
from pipeline.records.run_record import RunRecord
from pipeline.records.store import Artifact
from pipeline.runs.training_run import TrainingRun
from pipeline.runs.workspace import Workspace
from pipeline.settings.recipe import Recipe
from pipeline.settings.study import ScoredRows
from tests.pipeline.records.artifacts import manifest
from tests.pipeline.records.test_ledger import record
from tests.runs import joint_run, single_run

NAMES = {
    "adapter": "8d7ee5cf8a75",
    "adapter in turn": "6415e0ce7ec2",
    "adapter, warm": "ea31b6c3756e",
    "full, smart": "f76bf7a36fbf",
    "full, 50 rows, half of dev": "c6472af21a00",
    "sequential": "d482f070b810",
    "multitask from a start": "aad313c72148",
    "merge": "1e9022e12ff9",
    "fusion, gated": "b16fbad671a8",
    "fusion, standard": "45e7ee3a6122",
}


def adapter_of(workspace: Workspace, task: str) -> Artifact:
    """An adapter whose files have known contents."""
    files = {"adapter.safetensors": "a" * 64, "head.safetensors": "b" * 64}
    return Artifact(folder=workspace.store_root / task, manifest=manifest("c" * 12, task, files=files))


def tuned_on(task: str) -> RunRecord:
    """A fine-tuning that kept known weights."""
    given = record()
    identity = {**given.identity, "tasks": {task: given.identity["tasks"]["sst"]}}
    scores = {task: given.score("sst")}
    return record(kind="full", scores=scores, identity=identity, sources=(), weights_sha256="d" * 64)


@pytest.fixture
def known(workspace: Workspace, backbone: Backbone) -> Workspace:
    """A workspace whose backbone has known hashes: its random weights may differ from machine to machine."""
    tokenizer = replace(backbone.tokenizer)
    vars(tokenizer).update(hash="e" * 64)
    constant = replace(workspace)
    vars(constant).update(backbone=replace(backbone, weights_hash="1" * 64, config_hash="2" * 64, tokenizer=tokenizer))
    return constant


def test_runs_keep_their_names(known: Workspace, quick: Callable[..., Recipe]) -> None:
    """Runs of most kinds, and what else stands in a name: a part of the rows, halves of dev, settings."""

    def recipe(trainable: str, **settings: Any) -> Recipe:
        return quick(trainable, precision="fp32", **settings)  # "auto" depends on the machine

    def single(kind: str, task: str, own: Recipe, workspace: Workspace = known, **rest: Any) -> TrainingRun:
        return single_run(workspace, kind, task, own, 1, **rest)

    meals, pairs, films = (adapter_of(known, task) for task in ("meals", "pairs", "films"))
    halved = replace(known, scoring=ScoredRows(rows="half"))
    vars(halved).update(backbone=known.backbone)
    probed = recipe("fusion", fusion="gated", gate_start="probe")
    joint = {task: recipe("full", mixing="round-robin") for task in ("films", "pairs")}
    runs = {
        "adapter": single("adapter", "films", recipe("adapter")),
        "adapter in turn": single("adapter", "films", recipe("adapter"), adapters=(meals,), in_turn=True),
        "adapter, warm": single(
            "adapter", "pairs", recipe("adapter", encoding="siamese", head="cosine"), adapters=(meals,)
        ),
        "full, smart": single("full", "films", recipe("full", smart=1.0)),
        "full, 50 rows, half of dev": single("full", "pairs", recipe("full"), halved, limit=50),
        "sequential": single("sequential", "films", recipe("full"), start=tuned_on("meals")),
        "multitask from a start": joint_run(
            known, ["films", "pairs"], joint, limits={"films": None, "pairs": 40}, seed=1, start=tuned_on("meals")
        ),
        "merge": single("merge", "films", recipe("adapter", merge="ties"), adapters=(films, meals)),
        "fusion, gated": single("fusion", "films", probed, adapters=(meals, pairs)),
        "fusion, standard": single("fusion", "films", recipe("fusion", fusion="standard"), adapters=(films, meals)),
    }
    assert {title: run.name for title, run in runs.items()} == NAMES


def test_rows_keep_their_fingerprint() -> None:
    rows = pd.DataFrame({"id": ["0", "1"], "text_a": ["good", "b\u00e4d: 2"], "label": [1, 0]})
    assert fingerprint(rows) == "34158313ab0d3c045d8fa8dab0a891fab74e576f4bc5de4fbe05aa7f5762ff54"


def test_tensors_keep_their_hash() -> None:
    tensors = {"weight": torch.tensor([[0.0, 1.5], [-2.0, 3.0]])}
    assert hash_tensors(tensors) == "c5c9b441af17f4b9fd76ef1b40c92a836e813db0088e1b65e7f81a4c98c5274c"
