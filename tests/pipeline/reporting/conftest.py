"""A finished study with hostile texts, made without training: runs with known predictions in a ledger."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from pipeline.ledger import Cost, Ledger, RunRecord, run_name
from pipeline.recipe import Recipe
from pipeline.reporting.entries import Entry, StudyResult, Summary, results_table, summarise
from pipeline.study import Study

HOSTILE = '<script src="https://example.org/x.js">alert("&")</script><img src=x onerror=alert(1)>'
ROWS = 400

# Accuracy on sst and the noise of scores on sts: adapter is better than full on both, sequential worse on sst.
ACCURACY = {"full": 0.6, "adapter": 0.8, "sequential:sts": 0.4, "frozen": 0.6}
NOISE = {"full": 2.0, "adapter": 0.5, "sequential:sst": 2.0, "frozen": 2.0}


def _finish(ledger: Ledger, method: str, target: str, seed: int, **changes: Any) -> Entry:
    # Systems of one quality make other errors.
    generator = np.random.default_rng([seed, list(NOISE).index(method) if method in NOISE else 9])
    labels = np.random.default_rng(0).random(ROWS) * 5
    if target == "sst":
        labels = labels.astype(int)
        right = np.arange(ROWS) < ACCURACY[method] * ROWS
        predictions = np.where(right, labels, (labels + 1) % 5)
        dev = float(np.mean(right))
    else:
        predictions = labels + generator.normal(0, NOISE[method], ROWS)
        dev = float(np.corrcoef(labels, predictions)[0, 1])
    identity = {"method": method, "target": target, "seed": seed}
    values: dict[str, Any] = {
        "run": run_name(identity),
        "kind": method.partition(":")[0],
        "task": target,
        "seed": seed,
        "limit": None,
        "recipe": Recipe(epochs=4),
        "identity": identity,
        "backbone": "nano",
        "metric": "accuracy" if target == "sst" else "pearson",
        "dev": dev,
        "best_epoch": 2,
        "rows": {"train": 1000, "dev": ROWS, "dev_in_train": 0},
        "cost": Cost(
            trainable_parameters=1_234_567, seconds=12.4, examples_per_second=99.0, peak_memory_mb=512.0 + seed
        ),
        "provenance": {"commit": "abc", "note": HOSTILE},
    }
    record = RunRecord(**values | changes)
    table = pd.DataFrame({"id": range(ROWS), "label": labels, "prediction": predictions})
    ledger.finish(record, [{"epoch": 1.0, "dev": dev}], table)
    return Entry(method=method, target=target, seed=seed, run=record.run, total_seconds=20.6)


@pytest.fixture(scope="session")
def finish() -> Callable[..., Entry]:
    """Put a finished run into a ledger: ``finish(ledger, "adapter", "sst", 1)``."""
    return _finish


@pytest.fixture(scope="session")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    """The runs of ``result``; not to be changed."""
    return Ledger(tmp_path_factory.mktemp("study") / "reports")


@pytest.fixture
def own_ledger(ledger: Ledger, result: StudyResult, tmp_path: Path) -> Ledger:
    """A copy of the runs of ``result``, to be changed."""
    shutil.copytree(ledger.root, tmp_path / "own" / "runs")
    return Ledger(tmp_path / "own")


@pytest.fixture(scope="session")
def result(ledger: Ledger) -> StudyResult:
    """Four methods on two targets with two seeds; one run failed, and frozen has no run on sts at all."""
    study = Study.parse(
        {
            "name": "hostile",
            "description": HOSTILE,
            "methods": ["full", "adapter", "sequential", "frozen"],
            "targets": ["sst", "sts"],
            "seeds": [1, 2],
        },
        "test",
    )
    entries = []
    for seed in study.seeds:
        for target in study.targets:
            for method in ("full", "adapter", f"sequential:{'sts' if target == 'sst' else 'sst'}", "frozen"):
                if (method, target) == ("frozen", "sts") or (method, target, seed) == ("adapter", "sst", 2):
                    entries.append(Entry(method=method, target=target, seed=seed, error=f"no memory {HOSTILE}"))
                else:
                    entries.append(_finish(ledger, method, target, seed))
    return StudyResult(study=study, backbone=f"nano {HOSTILE}", entries=tuple(entries))


@pytest.fixture(scope="session")
def results(result: StudyResult, ledger: Ledger) -> pd.DataFrame:
    return results_table(result, ledger)


@pytest.fixture(scope="session")
def summary(result: StudyResult, ledger: Ledger) -> Summary:
    return summarise(result, ledger)
