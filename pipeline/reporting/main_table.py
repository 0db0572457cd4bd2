"""The main table: every row on every target, tested against the reference, with its cost beside it."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from pipeline.reporting.report import Cell, Table
from pipeline.reporting.runs import Scored, StudyRuns, runs_of
from pipeline.reporting.text import MISSING, comparison_text, count, number, score_text
from pipeline.reporting.verdicts import compare_lines, full_test_note
from pipeline.stats.metrics import overall
from pipeline.stats.paired import Comparison

Verdicts = Mapping[tuple[str, str | None], Comparison]
"""By line and target; None for the mean over all targets."""


def main_verdicts(runs: StudyRuns) -> Verdicts:
    """Every line against the reference, and its mean over the targets where it has them all; corrected together."""
    study = runs.study
    groups = {
        (label, target): runs.cell(label, target)
        for label in runs.labels
        for target in study.targets
        if label != study.reference
    }
    references = {(label, target): runs.cell(study.reference, target) for label, target in groups}
    return compare_lines(runs, groups, references, study.targets)


def main_table(runs: StudyRuns, verdicts: Verdicts) -> Table:
    targets = runs.study.targets
    columns = (
        "method",
        *(f"{target} ({runs.metrics.get(target, MISSING)})" for target in targets),
        *(("mean", "mean, (r+1)/2") if len(targets) > 1 else ()),
        "trainable parameters",
        "seconds",
        "with sources",
        "peak memory, MB",
        "epochs",
    )
    notes = (
        *full_test_note(runs.title(runs.study.reference), len(verdicts)),
        "Scores are means over seeds ± their sample standard deviation; seconds are of one run, without and with the"
        " runs that it is built on.",
        "What each row chose on the dev rows that are scored here, its epoch among it, stands in the next table.",
    )
    rows = tuple(_row(runs, label, verdicts) for label in runs.labels)
    return Table("main", "Scores on dev", columns, rows, notes)


def score_cell(
    group: Sequence[Scored], planned: int, comparison: Comparison | None, against: str, missing: str = ""
) -> Cell:
    """The mean of a group's scores with its verdict.

    Args:
        planned: runs that the group should have.
        missing: why some of them are not there.
    """
    values = [scored.value for scored in group]
    told = [comparison_text(comparison, against)] if comparison else []
    told += [f"{len(values)} of {planned} runs"] if planned > 1 else []
    told += [missing] if missing else []
    return Cell(
        score_text(values, planned),
        statistics.mean(values) if values else None,
        runs_of(group),
        comparison.verdict if comparison else None,
        "; ".join(told),
    )


def mean_cell(value: float | None, runs: tuple[str, ...], comparison: Comparison | None, against: str) -> Cell:
    """A mean over targets with its verdict."""
    if comparison is None:
        return Cell(number(value), value, runs)
    return Cell(number(value), value, runs, comparison.verdict, comparison_text(comparison, against))


def _row(runs: StudyRuns, label: str, verdicts: Verdicts) -> tuple[Cell, ...]:
    study, reference = runs.study, runs.title(runs.study.reference)
    groups = {target: runs.cell(label, target) for target in study.targets}
    scores = [
        score_cell(group, len(study.seeds), verdicts.get((label, target)), reference, _missing(runs, label, target))
        for target, group in groups.items()
    ]
    found = [scored for group in groups.values() for scored in group]
    records = list({scored.record.run: scored.record for scored in found}.values())
    means = {target: statistics.mean(s.value for s in group) for target, group in groups.items() if group}
    cells = [Cell(runs.title(label), label), *scores]
    if len(study.targets) > 1:
        complete = len(means) == len(study.targets)
        plain, normalised = overall(means, runs.metrics) if complete else (None, None)
        used = runs_of(found) if complete else ()
        cells += [
            mean_cell(plain, used, verdicts.get((label, None)), reference),
            mean_cell(normalised, used, None, reference),
        ]

    def mean(values: Sequence[float]) -> float | None:
        return statistics.mean(values) if values else None

    trained = mean([record.cost.trainable_parameters for record in records])
    seconds = mean([record.cost.seconds for record in records])
    total = mean([scored.entry.total_seconds or scored.record.cost.seconds for scored in found])
    memory = max((record.cost.peak_memory_mb for record in records), default=None)
    epochs = sorted({scored.epochs for scored in found})
    return (
        *cells,
        Cell(count(trained), trained),
        Cell(count(seconds), seconds),
        Cell(count(total), total),
        Cell(count(memory), memory),
        Cell(", ".join(map(str, epochs)) or MISSING, max(epochs, default=None)),
    )


def _missing(runs: StudyRuns, label: str, target: str) -> str:
    return "; ".join(f"seed {entry.seed} failed: {entry.error}" for entry in runs.failures(label, target))
