"""A store and a ledger with something in them, made without training, to be damaged."""

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from hypothesis import strategies as st

from pipeline.records.ledger import Ledger
from pipeline.records.run_record import RunRecord, TaskScore, run_name
from pipeline.records.store import MANIFEST, Store
from pipeline.records.studies import Entry, StudyResult
from pipeline.settings.parse_study import parse_study
from pipeline.settings.recipe import Recipe
from tests.fuzz.fuzz_documents import ODD_TEXTS, files, near_valid
from tests.pipeline.records.artifacts import MEANING, SST, STS, save_ensemble, save_fusion
from tests.pipeline.records.test_ledger import record

ADAPTERS = {"sst": SST, "sts": STS}
ROWS = 24
CELLS: list[tuple[Any, int]] = [(method, seed) for seed in (1, 2) for method in ("full", "adapter")]


def _identity(kind: str, seed: int) -> dict[str, Any]:
    tasks = {"sst": {"meaning": MEANING, "data": {"train": "train", "dev": "dev"}}}
    return {"tasks": tasks, "backbone": {"weights": "hash of nano"}, "recipe": {"trainable": kind}, "seed": seed}


RUNS = [run_name(_identity(kind, seed)) for kind, seed in CELLS]


def make_store(root: Path) -> Store:
    """Two adapters, and a fusion of both."""
    store = Store(root)
    save_fusion(store)
    return store


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
    save_ensemble(root, "best", RUNS[0])
    return ledger


def _record(run: str, kind: Any, seed: int) -> RunRecord:
    own = TaskScore(metric="accuracy", dev=0.5, rows=ROWS, recipe=Recipe(trainable=kind, epochs=1), train_rows=9)
    scores = {"sst": own, "sts": TaskScore(metric="pearson", dev=0.1, rows=ROWS)}
    return record(run, kind=kind, seed=seed, identity=_identity(kind, seed), best_epoch=1, scores=scores, sources=())


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
