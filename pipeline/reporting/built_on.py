"""What a target gains from other tasks: every row that is built on another, against that row on the target alone."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace

from pipeline.paired import Comparison
from pipeline.reporting.report import Cell, Table
from pipeline.reporting.runs import Scored, StudyRuns, row_of, runs_of
from pipeline.reporting.text import comparison_text, points, score_text
from pipeline.reporting.verdicts import judge


@dataclass(frozen=True)
class Gain:
    """A target with help from ``sources`` against the row that it is built on, over the seeds both have."""

    row: str
    base: str
    sources: str
    target: str
    alone: tuple[Scored, ...]
    helped: tuple[Scored, ...]
    comparison: Comparison


def gains(runs: StudyRuns) -> list[Gain]:
    """Every line that is built on another row, and the model of several tasks, against tuning on the target alone."""
    found, family = [], {}
    for label in runs.labels:
        row = runs.study.row(row_of(label))
        base = "full" if row.method == "multitask" else row.of
        for target in runs.study.targets:
            if base is None:
                continue
            helped, alone = runs.cell(label, target), runs.cell(base, target)
            resampled = runs.resampled(helped, alone)
            if resampled is None:
                continue
            sources = label.partition(":")[2] or ", ".join(runs.study.partners(label, target))
            family[label, target] = resampled
            uncorrected = resampled.comparison()
            found.append(Gain(label, base, sources, target, tuple(alone), tuple(helped), uncorrected))
    corrected = judge(family)
    return [replace(gain, comparison=corrected[gain.row, gain.target]) for gain in found]


def transfer_table(runs: StudyRuns, found: list[Gain]) -> Table | None:
    """One line a gain; None where no row is built on another."""
    if not found:
        return None
    rows = tuple(
        (
            Cell(runs.title(gain.row), gain.row),
            Cell(gain.sources, gain.sources),
            Cell(gain.target, gain.target),
            _scores(gain.alone),
            _scores(gain.helped),
            Cell(
                points(gain.comparison.difference),
                gain.comparison.difference,
                runs_of((*gain.helped, *gain.alone)),
                gain.comparison.verdict(),
                comparison_text(gain.comparison, runs.title(gain.base)),
            ),
        )
        for gain in found
    )
    columns = ("method", "help from", "target", "alone", "with help", "gain, points")
    notes = (
        "Alone: sequential and multitask against fine-tuning on the target only, what is built on adapters against the"
        " target's own. Paired tests, Holm-corrected over this table.",
    )
    return Table("transfer", "Gain from other tasks", columns, rows, notes)


def _scores(group: tuple[Scored, ...]) -> Cell:
    values = [scored.value for scored in group]
    return Cell(score_text(values), statistics.mean(values), runs_of(group))
