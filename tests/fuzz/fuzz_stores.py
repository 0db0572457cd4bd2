"""A store and a ledger with something in them, made without training, to be damaged."""

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from hypothesis import strategies as st
from safetensors.torch import save_file

from pipeline.records.ensembles import EnsembleRecord, Ensembles, Member, Scores
from pipeline.records.ledger import Ledger
from pipeline.records.run_record import Cost, Parameters, RunRecord, TaskScore, run_name
from pipeline.records.store import HEAD, MANIFEST, Artifact, Manifest, SourceRun, Store
from pipeline.records.studies import Entry, StudyResult
from pipeline.settings.parse_study import parse_study
from pipeline.settings.recipe import Recipe
from tests.fuzz.fuzz_documents import ODD_TEXTS, files, near_valid

ADAPTERS = {"sst": "a" * 12, "sts": "b" * 12}
FUSION = "c" * 12
MEANING = {"kind": "classes", "classes": ["bad", "good"], "range": None, "metric": "accuracy"}
ROWS = 24
CELLS: list[tuple[Any, int]] = [(method, seed) for seed in (1, 2) for method in ("full", "adapter")]


def _identity(kind: str, seed: int) -> dict[str, Any]:
    tasks = {"sst": {"meaning": MEANING, "data": {"train": "train", "dev": "dev"}}}
    return {"tasks": tasks, "backbone": {"weights": "hash of nano"}, "recipe": {"trainable": kind}, "seed": seed}


RUNS = [run_name(_identity(kind, seed)) for kind, seed in CELLS]


def make_store(root: Path) -> Store:
    """Two adapters, and a fusion of both."""
    store = Store(root)
    adapters = [_save(store, run, task, "adapter", ()) for task, run in ADAPTERS.items()]
    sources = tuple(SourceRun(task=a.manifest.task, run=a.manifest.run, digest=a.manifest.digest) for a in adapters)
    _save(store, FUSION, "sts", "fusion", sources)
    return store


def _save(store: Store, run: str, task: str, kind: Any, sources: tuple[SourceRun, ...]) -> Artifact:
    manifest = Manifest(
        kind=kind, task=task, run=run, seed=1, limit=None, recipe=Recipe(encoding="cross"), train_rows="rows",
        pair=False, meaning=MEANING, metric="accuracy", dev=0.5, dev_rows=9, dev_fingerprint="dev",
        backbone="nano", backbone_weights="hash of nano", sources=sources,
    )  # fmt: skip

    def write(folder: Path) -> None:
        (folder / "adapter_config.json").write_text("{}")
        save_file({"down": torch.arange(6.0) + int(run[0], 16)}, folder / "adapter.safetensors")
        save_file({"weight": torch.ones(2, 3), "bias": torch.ones(2)}, folder / HEAD)

    return store.save(manifest, write)


def make_reports(root: Path) -> Ledger:
    """A study of two methods and two seeds on one task, its runs, and an ensemble of them."""
    ledger, entries = Ledger(root), []
    study = parse_study({"name": "own", "methods": ["full", "adapter"], "targets": ["sst"], "seeds": [1, 2]}, "test")
    for run, (method, seed) in zip(RUNS, CELLS, strict=True):
        ledger.finish(_record(run, method, seed), _curve(), {"sst": predictions(seed), "sts": predictions(0)})
        entries.append(Entry(method=method, target="sst", seed=seed, run=run, total_seconds=1.0))
    result = StudyResult(study=study, backbone="nano", entries=tuple(entries))
    (root / "own").mkdir()
    (root / "own" / "study.json").write_text(result.model_dump_json())
    scores = Scores(rows=ROWS, ensemble=0.5, best=0.5)
    member = Member(run=RUNS[0], kind="full", backbone="nano", seed=1, weight=1.0, dev=0.5)
    ensemble = EnsembleRecord(
        name="best", task="sst", metric="accuracy", meaning=MEANING, rule="mean", members=(member,), best=RUNS[0],
        considered=(RUNS[0],), chosen_on="half", seed=0, dev_rows="dev", chosen=scores, held_out=scores, provenance={},
    )  # fmt: skip
    Ensembles(root).write(ensemble, predictions(0))
    return ledger


def _record(run: str, kind: Any, seed: int) -> RunRecord:
    own = TaskScore(metric="accuracy", dev=0.5, rows=ROWS, recipe=Recipe(trainable=kind, epochs=1), train_rows=9)
    return RunRecord(
        run=run, kind=kind, seed=seed, identity=_identity(kind, seed), backbone="nano", best_epoch=1,
        scores={"sst": own, "sts": TaskScore(metric="pearson", dev=0.1, rows=ROWS)},
        cost=Cost(trainable_parameters=7, seconds=1.5, examples_per_second=10.0, peak_memory_mb=100.0),
        parameters=Parameters(backbone=100, head=5, model=105), provenance={"commit": None, "python": "3"},
    )  # fmt: skip


def _curve() -> list[dict[str, float | None]]:
    points = [{"epoch": 0.0, "loss": None, "dev": 0.3}, {"epoch": 1.0, "loss": 0.7, "dev": 0.5}]
    return [point | {"learning_rate": 0.1, "examples": 9, "seconds": 0.5} for point in points]


def predictions(seed: int) -> pd.DataFrame:
    generator = np.random.default_rng(seed)
    labels, right = np.arange(ROWS) % 2, generator.random(ROWS)
    return pd.DataFrame(
        {
            "id": [str(row) for row in range(ROWS)],
            "label": labels,
            "prediction": np.where(right > 0.3, labels, 1 - labels),
            "probability_0": right,
            "probability_1": 1 - right,
        }
    )


# Faults of a folder.


@dataclass(frozen=True)
class Fault:
    """Something that befalls the ``number``-th file of a folder, or its parent."""

    kind: str
    number: int
    content: bytes = b""
    name: str = ""

    def befall(self, root: Path) -> None:
        """Nothing, where the file system itself refuses it."""
        files = sorted(file for file in root.rglob("*") if not file.is_dir() or file.is_symlink())
        if not files:
            return
        file = files[self.number % len(files)]
        try:
            self._befall(root, file)
        except (OSError, ValueError):
            return

    def _befall(self, root: Path, file: Path) -> None:
        if self.kind == "other":  # what stands in another file
            shutil.copy(file, sorted(root.rglob(file.name))[0])
        elif self.kind == "rename":
            file.rename(file.with_name(self.name))
        elif self.kind == "move":
            file.parent.rename(file.parent.with_name(self.name))
        elif self.kind == "beside":
            shutil.copytree(file.parent, file.parent.with_name(self.name))
        elif self.kind == "add":
            file.with_name(self.name).write_bytes(self.content)
        else:
            self._replace(file)

    def _replace(self, file: Path) -> None:
        before = file.read_bytes() if file.is_file() else b""
        file.unlink()
        match self.kind:
            case "bytes":
                file.write_bytes(self.content)
            case "flip":
                at = len(self.content) % max(1, len(before))
                file.write_bytes(before[:at] + bytes([before[at] ^ 1]) + before[at + 1 :] if before else b"")
            case "folder":
                file.mkdir()
            case "link":
                file.symlink_to(self.name)
            case "pipe":
                os.mkfifo(file)


names = st.sampled_from([*ODD_TEXTS, "../../..", "/etc/hostname", MANIFEST, "d" * 12, "." + "a" * 12, *ADAPTERS, *RUNS])
faults = st.builds(
    Fault,
    kind=st.sampled_from(
        ["bytes", "drop", "flip", "folder", "link", "pipe", "rename", "move", "beside", "add", "other"]
    ),
    number=st.integers(0, 40),
    content=st.binary(max_size=40) | st.sampled_from([b"{}", b"[" * 100_000, b"null", b"\xff\xfe"]),
    name=names,
)


def documents_in(folder: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.rglob(name))]


def json_files(model: Any, documents: list[dict[str, Any]]) -> st.SearchStrategy[bytes]:
    """The bytes of a ``model``'s file: near-valid JSON, or damaged bytes of it."""
    return files(near_valid(model, documents), "json")
