"""What a model trained on one task scores on the others (Liu & Shen 2023, table 7)."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from pipeline.reporting.report import Cell, Table
from pipeline.reporting.runs import Scored, StudyRuns, resample_tables, runs_of
from pipeline.reporting.text import MISSING, comparison_text, score_text
from pipeline.reporting.verdicts import judge, short_test_note
from pipeline.stats.paired import Comparison

_READINGS = {
    "same": "read as it is",
    "probability": "its probability of class 1, brought to the score's range",
    "middle": "its score, class 1 above the middle of its range",
}


def cross_task_table(runs: StudyRuns) -> Table | None:
    """One line a row and task trained on; None where the study does not ask, or nothing but its own task was scored."""
    if not runs.study.cross_task:
        return None
    lines = [(name, task) for name in runs.rows for task in runs.study.targets if _scored_elsewhere(runs, name, task)]
    if not lines:
        return None
    verdicts = _verdicts(runs, lines)
    targets = runs.study.targets
    rows = tuple(
        (
            Cell(runs.title(name), name),
            Cell(task, task),
            *(_cell(runs, name, task, target, verdicts.get((name, task, target))) for target in targets),
        )
        for name, task in lines
    )
    columns = ("method", "trained on", *(f"{target} ({runs.metrics.get(target, MISSING)})" for target in targets))
    notes = (
        "A model trained on one task, scored on dev of the others without more training. Where the tasks have as many"
        " texts and the same classes or range it is read as it is. Of pairs, a probability of class 1 of two is read as"
        " a score, brought to its range, and a score as a class, 1 above the middle of its own range. Elsewhere its"
        " outputs mean nothing: a dash.",
        *short_test_note("the same row trained on that column's task", len(verdicts)),
    )
    return Table("cross-task", "Trained on one task, scored on all", columns, rows, notes)


def _scored_elsewhere(runs: StudyRuns, name: str, task: str) -> bool:
    return any(_across(runs, name, task, target) for target in runs.study.targets)


def _across(runs: StudyRuns, name: str, task: str, target: str) -> list[Scored]:
    """The runs of a row trained on ``task`` that were read on ``target``, by seed."""
    cells = (scored for scored in runs.cell(name, task) if scored.record.task == task != target)
    return [s for s in cells if (other := s.record.others.get(target)) is not None and other.reading is not None]


def _cell(runs: StudyRuns, name: str, task: str, target: str, comparison: Comparison | None) -> Cell:
    if task == target:
        own = runs.cell(name, task)
        values = [scored.value for scored in own]
        return Cell(score_text(values), statistics.mean(values), runs_of(own), None, "its own task")
    group = _across(runs, name, task, target)
    if not group:
        return Cell(MISSING)
    values = [scored.record.score_of(target) for scored in group]
    reading = group[0].record.others[target].reading
    told = [_READINGS[reading]] if reading is not None else []
    told += [comparison_text(comparison, f"{runs.title(name)} on {target}")] if comparison is not None else []
    verdict = comparison.verdict if comparison is not None else None
    return Cell(score_text(values), statistics.mean(values), runs_of(group), verdict, "; ".join(told))


def _verdicts(runs: StudyRuns, lines: Sequence[tuple[str, str]]) -> dict[tuple[str, str, str], Comparison]:
    """Each model on another task against the model of that task, over the seeds that both have."""
    family = {}
    for name, task in lines:
        for number, target in enumerate(runs.study.targets):
            own = {scored.entry.seed: scored.record.run for scored in runs.cell(name, target)}
            pairs = [
                (runs.predictions(scored.record.run, target), runs.predictions(own[scored.entry.seed], target))
                for scored in _across(runs, name, task, target)
                if scored.entry.seed in own
            ]
            if pairs:
                family[name, task, target] = resample_tables(runs.metrics[target], pairs, seed=number)
    return judge(family)
