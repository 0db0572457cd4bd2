"""A finished study made without training: runs with known predictions in a ledger."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pandas as pd

from pipeline.data.task_data import Added
from pipeline.records.ledger import Ledger
from pipeline.records.run_record import Cost, Parameters, RunRecord, TaskScore, run_name
from pipeline.records.store import SourceRun
from pipeline.records.studies import Entry, Line, StudyResult
from pipeline.settings.kinds import KINDS
from pipeline.settings.parse_study import parse_study
from pipeline.settings.recipe import Recipe
from pipeline.settings.study import Study
from pipeline.stats.metrics import accuracy, pearson

ROWS = 400
CLASSES = ["awful", "poor", "fair", "good", "great"]
BACKBONE = "b" * 64
BACKBONE_PARAMETERS = 1_000_000
HEAD = 1_000
SCORED = {"sts", "pairs"}
"""Targets with a score; the others have classes."""


def labels_of(target: str, rows: int = ROWS) -> np.ndarray:
    generator = np.random.default_rng(crc32(target.encode()))
    return generator.random(rows) * 5 if target in SCORED else generator.integers(0, 5, rows)


def predictions_of(target: str, quality: float, seed: object, rows: int = ROWS) -> np.ndarray:
    """Classes that are right with probability ``quality``, or scores with so much noise.

    Args:
        seed: a tuple is of a system, a seed and more; seeds of a system differ on about a tenth of the rows.
    """
    system = (seed[0], *seed[2:]) if isinstance(seed, tuple) else seed
    base, own = (np.random.default_rng(crc32(repr((target, key)).encode())) for key in (system, seed))
    labels, redrawn = labels_of(target, rows), own.random(rows) < 0.1
    if metric_of(target) == "pearson":
        return labels + np.where(redrawn, own.normal(0, quality, rows), base.normal(0, quality, rows))
    right = np.where(redrawn, own.random(rows), base.random(rows)) < quality
    return np.where(right, labels, (labels + base.integers(1, 5, rows)) % 5)


def metric_of(target: str) -> Any:
    return "pearson" if target in SCORED else "accuracy"


def score_of(target: str, predictions: np.ndarray) -> float:
    function = pearson if target in SCORED else accuracy
    return function(predictions, labels_of(target, len(predictions)))


@dataclass
class Synthetic:
    """A study and the ledger that its runs are put into, one call a cell."""

    reports: Path
    study: Study
    entries: list[Entry] = field(default_factory=list)

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.reports)

    @property
    def result(self) -> StudyResult:
        return StudyResult(study=self.study, backbone="nano", entries=tuple(self.entries))

    def record(
        self,
        label: str,
        target: str,
        seed: int,
        quality: float = 0.6,
        *,
        rows: int | None = None,
        predictions: np.ndarray | None = None,
        others: Mapping[str, tuple[np.ndarray, float | None]] | None = None,
        trained: int = 10_000,
        attention: pd.DataFrame | None = None,
        curve: list[dict[str, float | None]] | None = None,
        start: float | None = None,
        **changes: Any,
    ) -> RunRecord:
        """Put a run into the ledger.

        Args:
            predictions: instead of those that ``quality`` draws.
            others: predictions for other tasks, and the score on them before, if known.
            start: the score before the first step, for a curve that begins there.
            changes: other fields of the record.
        """
        if predictions is None:
            predictions = predictions_of(target, quality, (label, seed, rows))
        labels = labels_of(target, len(predictions))
        dev = score_of(target, predictions)
        method = self.study.row(Line.parse(label).row).method
        identity = {
            "label": label,
            "target": target,
            "seed": seed,
            "rows": rows,
            "backbone": {"weights": BACKBONE},
            **({"members": []} if method == "ensemble" else {}),
            "tasks": {
                task: {"meaning": {"classes": [] if task in SCORED else CLASSES}} for task in (target, *(others or {}))
            },
        }
        recipe = changes.pop("recipe", Recipe(trainable=KINDS[method].trains[0], epochs=4))
        own = TaskScore(
            metric=metric_of(target), dev=dev, rows=len(predictions), recipe=recipe, train_rows=rows or 1000
        )
        scores = {
            task: TaskScore(
                metric=metric_of(task),
                dev=score_of(task, values),
                rows=ROWS,
                recipe=recipe if method == "multitask" else None,
                train_rows=(rows or 1000) if method == "multitask" else 0,
                before=before,
            )
            for task, (values, before) in (others or {}).items()
        }
        apart = self.study.scoring.rows != "dev"
        if apart:  # what is dev otherwise is scored, and other rows chose
            own = _apart(own, start)
            scores = {task: _apart(score) for task, score in scores.items()}
        values: dict[str, Any] = {
            "run": run_name(identity),
            "kind": method,
            "seed": seed,
            "identity": identity,
            "backbone": "nano",
            "best_epoch": 2,
            "scores": {target: own.model_copy(update=changes.pop("own", {})), **scores},
            "cost": Cost(
                trainable_parameters=BACKBONE_PARAMETERS + HEAD
                if method in ("full", "sequential", "multitask")
                else trained,
                seconds=12.4,
                examples_per_second=99.0,
                peak_memory_mb=512.0 + seed,
            ),
            "parameters": Parameters(backbone=BACKBONE_PARAMETERS, head=HEAD, model=BACKBONE_PARAMETERS + HEAD),
            "provenance": {"commit": "abc"},
            "finished_at": "2024-01-01T00:00:00+00:00",
        }
        record = RunRecord(**values | changes)
        each = {f"dev_{task}": 0.25 for task in (target, *scores)} if scores and method == "multitask" else {}
        begun = [] if start is None else [{"epoch": 0, "loss": None, "dev": start, **each}]
        self.ledger.finish(
            record,
            curve
            or begun + [{"epoch": e, "loss": 1.0 / e, "dev": dev - 0.1 * (2 - e) ** 2, **each} for e in (1, 2, 3)],
            {
                target: _table(predictions, labels, apart),
                **{task: _table(values, labels_of(task), apart) for task, (values, _) in (others or {}).items()},
            },
            attention,
        )
        return record

    def add(self, label: str, target: str, seed: int, quality: float = 0.6, **how: Any) -> RunRecord:
        """A cell of the study with a run of its own; the arguments of :meth:`record`."""
        record = self.record(label, target, seed, quality, **how)
        self.serve(record, label, target, how.get("rows"))
        return record

    def serve(self, record: RunRecord, label: str, target: str, rows: int | None = None) -> None:
        """A cell of the study that ``record`` answers."""
        self.entries.append(
            Entry(method=label, target=target, seed=record.seed, rows=rows, run=record.run, total_seconds=20.6)
        )

    def fail(self, label: str, target: str, seed: int, error: str = "no memory", rows: int | None = None) -> None:
        self.entries.append(Entry(method=label, target=target, seed=seed, rows=rows, error=error))


def _apart(score: TaskScore, start: float | None = None) -> TaskScore:
    changes = {"dev": score.dev - 0.3, "rows": 7, "test": score.dev, "test_rows": score.rows, "start": start}
    return score.model_copy(update=changes)


def _table(predictions: np.ndarray, labels: np.ndarray, apart: bool) -> pd.DataFrame:
    table = pd.DataFrame({"id": range(len(labels)), "label": labels, "prediction": predictions})
    if not apart:
        return table
    return pd.concat([table[:7].assign(prediction=1.0, split="dev"), table.assign(split="test")], ignore_index=True)


def make(folder: Path, **keys: Any) -> Synthetic:
    """An empty study: ``make(tmp_path, methods=["full", "adapter"], targets=["sst"], seeds=[1])``."""
    values = {"name": "made", "methods": ["full", "adapter"], "targets": ["sst"], "seeds": [1], **keys}
    return Synthetic(folder / "reports", parse_study(values, "test", known_tasks=["quora"]))


def in_turn(folder: Path, **keys: Any) -> Synthetic:
    """A row that learns sst, of 700 rows in 8 epochs, and then sts, of 1,000 in 4, beside full fine-tuning on each."""
    rows = {"cycle": {"method": "sequential", "order": ["sst", "sts"], "title": "in turn"}}
    study = make(folder, methods=["full", "cycle"], targets=["sst", "sts"], rows=rows, **keys)
    first = study.add(
        "full", "sst", 1,
        recipe=Recipe(trainable="full", epochs=8, learning_rate=3e-5),
        own={"train_rows": 700, "dev_in_train": 17, "added": {"imdb": Added(rows=60, in_dev=3)}},
        curve=[{"epoch": epoch, "loss": 1.0, "dev": 0.5} for epoch in range(1, 9)],
    )  # fmt: skip
    study.add("full", "sts", 1)
    read = (SourceRun(task="sst", run=first.run, digest="a" * 64),)
    last = study.record("cycle", "sts", 1, others={"sst": (predictions_of("sst", 0.5, 7), 0.6)}, sources=read)
    for target in ("sst", "sts"):
        study.serve(last, "cycle", target)
    return study


def whole_study(folder: Path, **keys: Any) -> Synthetic:
    """Every kind of row, with what each leaves behind: two targets, a source, two seeds, a curve, a hole.

    On sst, adapter is far better than full and fusion better still; sequential fine-tuning forgets its source.
    """
    study = make(
        folder,
        methods=["frozen", "full", "sequential", "multitask", "adapter", "fusion"],
        targets=["sst", "sts"],
        sources=["imdb"],
        seeds=[1, 2],
        limit=1000,
        rows={
            "full": {"published": "full FT, mean"},
            "sequential": {"published": {"imdb": "LMRD then task", "sst": "SST then task", "sts": "STS then task"}},
            "adapter": {"published": "adapters"},
        },
        curve={"rows": [100], "methods": ["full", "sequential", "fusion"]},
        published={"report": "Xu", "table": "Table 1", "tasks": {"sst": "sst", "sts_r": "sts", "qqp": "quora"}},
        **keys,
    )
    quality = {
        "frozen": {"sst": 0.3, "sts": 4.0},
        "full": {"sst": 0.5, "sts": 1.5},
        "multitask": {"sst": 0.5, "sts": 1.5},
        "adapter": {"sst": 0.65, "sts": 1.5},
        "fusion": {"sst": 0.8, "sts": 1.0},
    }
    digests = {"sst": "1" * 64, "sts": "2" * 64, "imdb": "3" * 64}
    weights = pd.DataFrame(
        [(layer, site, task, 1 / 3) for layer in (0, 1) for site in ("attention", "ffn") for task in digests],
        columns=["layer", "site", "adapter", "weight"],
    )
    for seed in (1, 2):
        full = {task: study.record("full", task, seed, 0.5 if task != "sts" else 1.5) for task in digests}
        adapters = {
            task: study.record("adapter", task, seed, 0.65 if task != "sts" else 1.5, unchanged={"backbone": BACKBONE})
            for task in digests
        }
        shared = study.record(
            "multitask", "imdb", seed, others={t: (predictions_of(t, quality["multitask"][t], seed), None)
                                               for t in ("sst", "sts")}
        )  # fmt: skip
        for target in ("sst", "sts"):
            if (target, seed) == ("sts", 2):
                study.fail("frozen", target, seed)
            else:
                study.add("frozen", target, seed, quality["frozen"][target], trained=HEAD)
            study.serve(full[target], "full", target)
            study.serve(adapters[target], "adapter", target)
            study.serve(shared, "multitask", target)
            for source in digests:
                if source != target:
                    after = predictions_of(source, 0.25 if source != "sts" else 5.0, ("forgotten", target, seed))
                    for rows in (None, 100):
                        study.add(
                            f"sequential:{source}", target, seed, quality["full"][target], rows=rows,
                            others={source: (after, full[source].value)},
                            sources=(SourceRun(task=source, run=full[source].run, digest="f" * 64),),
                        )  # fmt: skip
            for rows in (None, 100):
                study.add(
                    "fusion", target, seed, quality["fusion"][target], rows=rows, trained=50_000, attention=weights,
                    unchanged={"backbone": BACKBONE, **digests}, start=adapters[target].value - 0.01, anchor=target,
                    sources=tuple(SourceRun(task=t, run=r.run, digest="a" * 64) for t, r in sorted(adapters.items())),
                )  # fmt: skip
            study.add("full", target, seed, 0.4 if target == "sst" else 3.0, rows=100)
    return study
