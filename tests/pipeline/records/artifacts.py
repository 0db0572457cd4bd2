"""Small artifacts, as training leaves them in a store."""

from pathlib import Path
from typing import Any

import pandas as pd
import torch
from safetensors.torch import save_file

from pipeline.records.store import HEAD, LAYERNORMS, Artifact, Manifest, SourceRun, Store
from pipeline.records.studies import EnsembleRecord, Ensembles, Entry, Member, Scores, StudyResult
from pipeline.settings.parse_study import parse_study
from pipeline.settings.recipe import Recipe
from pipeline.system.atomic import make_folder, write_json

SST, STS, FUSED, OTHER = "a" * 12, "b" * 12, "c" * 12, "d" * 12
MEANING = {"kind": "classes", "classes": ["bad", "good"], "range": None, "metric": "accuracy"}


def manifest(run: str, task: str = "sst", **changes: Any) -> Manifest:
    values: dict[str, Any] = {
        "kind": "adapter",
        "task": task,
        "run": run,
        "seed": 1,
        "limit": None,
        "recipe": Recipe(encoding="cross"),
        "train_rows": "fingerprint",
        "pair": task != "sst",
        "meaning": MEANING,
        "metric": "accuracy",
        "dev": 0.5,
        "dev_rows": 100,
        "dev_fingerprint": "fingerprint of dev",
        "backbone": "nano",
        "backbone_weights": "hash of nano",
    }
    return Manifest(**values | changes)


def save(store: Store, run: str, task: str = "sst", layernorms: bool = False, **changes: Any) -> Artifact:
    """An adapter or a fusion; its tensors differ from run to run, and with ``width``."""
    width = changes.pop("width", 6)

    def write(folder: Path) -> None:
        (folder / "adapter_config.json").write_text("{}")
        save_file({"down": torch.arange(float(width)) + int(run[0], 16)}, folder / "adapter.safetensors")
        save_file({"weight": torch.ones(2, 3), "bias": torch.ones(2)}, folder / HEAD)
        if layernorms:
            save_file({"norm": torch.ones(3)}, folder / LAYERNORMS)

    return store.save(manifest(run, task, **changes), write)


def save_fusion(store: Store) -> list[Artifact]:
    """Two adapters and a fusion of both."""
    parts = [save(store, SST), save(store, STS, "sts")]
    sources = tuple(SourceRun(task=a.manifest.task, run=a.manifest.run, digest=a.manifest.digest) for a in parts)
    return [*parts, save(store, FUSED, "sts", kind="fusion", sources=sources)]


def contents(root: Path) -> dict[str, bytes]:
    return {file.relative_to(root).as_posix(): file.read_bytes() for file in root.rglob("*") if file.is_file()}


def save_ensemble(reports: Path, name: str, *members: str) -> None:
    """An ensemble of sst, of adapters with these runs."""
    record = EnsembleRecord(
        name=name, task="sst", metric="accuracy", meaning={}, rule="mean", best=members[0], considered=members,
        members=tuple(Member(run=run, kind="adapter", backbone="nano", seed=1, weight=0.5, dev=0.5) for run in members),
        chosen_on="half", seed=0, dev_rows="aa", chosen=Scores(rows=2, ensemble=0.5, best=0.5), held_out=None,
        provenance={},
    )  # fmt: skip
    Ensembles(reports).write(record, pd.DataFrame({"id": ["0"], "prediction": [1]}))


def save_study(reports: Path, *runs: str, trials: tuple[str, ...] = ()) -> None:
    """The study ``few``, of adapters of sst, with these runs, one a seed."""
    study = parse_study({"name": "few", "methods": ["adapter"], "targets": ["sst"], "seeds": [1, 2, 3]}, "test")
    cells = enumerate(runs, 1)
    entries = tuple(Entry(method="adapter", target="sst", seed=seed, run=run, trials=trials) for seed, run in cells)
    result = StudyResult(study=study, backbone="nano", entries=entries)
    write_json(make_folder(reports / "few") / "study.json", result.model_dump(mode="json"))
