"""What a study came to: its runs, their scores by method and target, and which differences are real."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

import pandas as pd
from pydantic import BaseModel, ConfigDict

from pipeline.errors import PipelineError
from pipeline.ledger import Ledger, RunRecord
from pipeline.metrics import Metric, overall
from pipeline.paired import Comparison, compare_paired, holm
from pipeline.study import Study

RESULT_COLUMNS = [
    "method",
    "target",
    "seed",
    "split",
    "metric",
    "value",
    "trainable_parameters",
    "seconds",
    "examples_per_second",
    "peak_memory_mb",
    "run",
]


class Entry(BaseModel):
    """One cell of a study: a run, or the reason why there is none.

    A run may serve several cells: the model of a multitask run answers every target.
    """

    model_config = ConfigDict(frozen=True)

    method: str
    """The study's row, and for sequential tuning ``<row>:<source>``."""
    target: str
    seed: int
    rows: int | None = None
    """Training rows of the target at a point of the low-resource curve; None in the main table."""
    run: str | None = None
    total_seconds: float | None = None
    """Training seconds with those of the runs it is built on."""
    error: str | None = None


class StudyResult(BaseModel):
    """A study and its entries; kept as ``study.json``."""

    model_config = ConfigDict(frozen=True)

    study: Study
    backbone: str
    entries: tuple[Entry, ...]


@dataclass(frozen=True)
class Score:
    """A method on a target over the seeds that finished."""

    mean: float
    deviation: float
    """Sample standard deviation over seeds; 0 for one seed."""
    seeds: int
    difference: float | None = None
    """Mean minus the reference's, over the seeds both have; None for the reference itself."""
    p_value: float | None = None
    """Paired, Holm-corrected over the whole table."""
    verdict: str | None = None


@dataclass(frozen=True)
class MethodRow:
    """A line of the main table."""

    method: str
    scores: dict[str, Score]
    overall_plain: float | None
    """Mean over all targets; None when the method has not all of them."""
    overall_normalised: float | None
    """The same with Pearson's r as (r + 1) / 2."""
    trainable_parameters: float
    seconds: float
    """Mean training seconds of a run."""
    total_seconds: float
    """With the runs it is built on."""
    peak_memory_mb: float
    epochs: str


@dataclass(frozen=True)
class Summary:
    targets: tuple[str, ...]
    metrics: dict[str, Metric]
    reference: str
    rows: list[MethodRow]
    notes: list[str]


def results_table(result: StudyResult, ledger: Ledger) -> pd.DataFrame:
    """One row a finished run, with the columns of ``results.csv``."""
    rows = []
    for entry, record in _finished(result, ledger):
        rows.append(
            {
                "method": entry.method,
                "target": entry.target,
                "seed": entry.seed,
                "split": "dev",
                "metric": record.metric,
                "value": record.dev,
                **record.cost.model_dump(),
                "run": record.run,
            }
        )
    return pd.DataFrame(rows, columns=RESULT_COLUMNS)


def summarise(result: StudyResult, ledger: Ledger) -> Summary:
    """Means, deviations, overall scores, and the paired test of every method against the reference."""
    study = result.study
    finished = _finished(result, ledger)
    by_cell: dict[tuple[str, str], dict[int, tuple[Entry, RunRecord]]] = {}
    for entry, record in finished:
        by_cell.setdefault((entry.method, entry.target), {})[entry.seed] = (entry, record)
    metrics: dict[str, Metric] = {record.task: record.metric for _, record in finished}
    tests = _tests(by_cell, study, ledger)
    rows = []
    for method in dict.fromkeys(entry.method for entry in result.entries):
        scores, records, totals = {}, [], []
        for target in study.targets:
            cell = by_cell.get((method, target))
            if not cell:
                continue
            values = [record.dev for _, record in cell.values()]
            deviation = statistics.stdev(values) if len(values) > 1 else 0.0
            difference, p_value, verdict = tests.get((method, target), (None, None, None))
            scores[target] = Score(statistics.mean(values), deviation, len(values), difference, p_value, verdict)
            records += [record for _, record in cell.values()]
            totals += [entry.total_seconds or 0.0 for entry, _ in cell.values()]
        if not records:
            continue
        means = {target: score.mean for target, score in scores.items()}
        plain, normalised = overall(means, metrics) if len(means) == len(study.targets) else (None, None)
        rows.append(
            MethodRow(
                method,
                scores,
                plain,
                normalised,
                statistics.mean(record.cost.trainable_parameters for record in records),
                statistics.mean(record.cost.seconds for record in records),
                statistics.mean(totals),
                max(record.cost.peak_memory_mb for record in records),
                ", ".join(map(str, sorted({_epochs(record) for record in records}))),
            )
        )
    return Summary(study.targets, metrics, study.reference, rows, _notes(result, finished))


def _epochs(record: RunRecord) -> int:
    return record.recipe.epochs_over(record.rows["train"])


def _finished(result: StudyResult, ledger: Ledger) -> list[tuple[Entry, RunRecord]]:
    pairs = []
    for entry in result.entries:
        if entry.run is None:
            continue
        record = ledger.find(entry.run)
        if record is None:
            raise PipelineError(
                f"run {entry.run} of study {result.study.name} is no longer in {ledger.root}: compare again"
            )
        pairs.append((entry, record))
    return pairs


def _tests(
    by_cell: dict[tuple[str, str], dict[int, tuple[Entry, RunRecord]]], study: Study, ledger: Ledger
) -> dict[tuple[str, str], tuple[float, float, str]]:
    """Difference, corrected p and verdict of each cell against the reference on the seeds both have."""
    compared = {}
    for (method, target), cell in by_cell.items():
        reference = by_cell.get((study.reference, target), {})
        seeds = sorted(set(cell) & set(reference))
        if method == study.reference or not seeds:
            continue
        ours = [ledger.predictions(cell[seed][1].run) for seed in seeds]
        theirs = [ledger.predictions(reference[seed][1].run) for seed in seeds]
        labels = theirs[0]["label"].to_numpy()
        metric = cell[seeds[0]][1].metric
        compared[method, target] = compare_paired(
            metric, [t["prediction"].to_numpy() for t in ours], [t["prediction"].to_numpy() for t in theirs], labels
        )
    corrected = holm([comparison.p_value for comparison in compared.values()])
    judged = {
        key: Comparison(comparison.difference, p_value)
        for (key, comparison), p_value in zip(compared.items(), corrected, strict=True)
    }
    return {key: (found.difference, found.p_value, found.verdict()) for key, found in judged.items()}


def _notes(result: StudyResult, finished: list[tuple[Entry, RunRecord]]) -> list[str]:
    """What a reader must know to trust or doubt the table, computed from the records."""
    study = result.study
    notes = [f"Backbone {result.backbone}; dev scores at the epoch with the best dev score, so all are optimistic."]
    rows = {target: {r.rows["train"] for _, r in finished if r.task == target} for target in study.targets}
    sizes = ", ".join(f"{target} {'/'.join(map(str, sorted(sizes)))}" for target, sizes in rows.items())
    dev = {target: next((r.rows["dev"] for _, r in finished if r.task == target), 0) for target in study.targets}
    notes.append(f"Training rows: {sizes}; dev rows: {', '.join(f'{t} {n}' for t, n in dev.items())}.")
    leaks = {r.task: r.rows["dev_in_train"] for _, r in finished if r.rows["dev_in_train"]}
    if leaks:
        notes.append(f"Dev rows whose text also stands in train: {', '.join(f'{t} {n}' for t, n in leaks.items())}.")
    epochs: dict[str, set[int]] = {}
    for entry, record in finished:
        epochs.setdefault(entry.method.partition(":")[0], set()).add(_epochs(record))
    if len(set().union(*epochs.values())) > 1:
        listed = ", ".join(f"{method} {'/'.join(map(str, sorted(counts)))}" for method, counts in epochs.items())
        notes.append(f"Epoch budgets differ: {listed}; fusion and sequential start from trained models.")
    notes.append(
        f"Marks: against {study.reference}, paired randomisation test on the same dev rows over the seeds,"
        " Holm-corrected over the table, level 0.05."
    )
    failed = [entry for entry in result.entries if entry.error]
    notes += [f"Missing: {e.method} {e.target} seed {e.seed}: {e.error}" for e in failed]
    return notes


def score_text(score: Score | None, spread: str) -> str:
    """``0.512 <spread> 0.004``, or ``-`` where there is nothing."""
    if score is None:
        return "-"
    return f"{score.mean:.3f}" + (f" {spread} {score.deviation:.3f}" if score.seeds > 1 else "")
