"""What a model trained on one task scores on the others (Liu & Shen 2023, table 7)."""

from pipeline.records.studies import Line
from pipeline.reporting.cells import group_cell, judge, judged, line_cell, text_cell
from pipeline.reporting.report import Cell, Table
from pipeline.reporting.runs import Scored, StudyRuns
from pipeline.reporting.text import MISSING, marks_note
from pipeline.stats.paired import Comparison

_READINGS = {
    "same": "read as it is",
    "probability": "its probability of the class of similar texts, rescaled to the range of the score",
    "middle": "its score, the class of similar texts above the middle of its range",
    "cosine": "the cosine of its sentence vectors, by which the row scores that task",
}


def cross_task_table(runs: StudyRuns) -> Table | None:
    """One line per row and training task; None if the study does not ask for it, or no other task was scored."""
    if not runs.study.cross_task:
        return None
    targets = runs.study.targets
    across = {
        (line, task, target): _across(runs, line, task, target)
        for line in map(Line, runs.rows)
        for task in targets
        for target in targets
    }
    # A model on another task against that task's model, over their common seeds.
    verdicts = judge(
        {key: runs.difference(own, runs.cell(key[0], key[2]), key[2]) for key, own in across.items()}, runs.study.looks
    )
    rows = []
    for line, task in dict.fromkeys((line, task) for (line, task, _), own in across.items() if own):
        scores = {runs.column(t): _cell(runs, line, task, t, verdicts.get((line, task, t))) for t in targets}
        rows.append({"method": line_cell(runs, line), "trained on": text_cell(task), **scores})
    return Table.of("cross-task", rows, marks=marks_note("the same row trained on that column's task", verdicts))


def _across(runs: StudyRuns, line: Line, task: str, target: str) -> list[Scored]:
    """The runs of a line trained on ``task`` that were scored on ``target``, by seed."""
    trained = (scored for scored in runs.cell(line, task) if scored.record.task == task != target)
    read = (scored.on(target) for scored in trained if target in scored.record.scores)
    return [scored for scored in read if scored.score.reading is not None]


def _cell(runs: StudyRuns, line: Line, task: str, target: str, comparison: Comparison | None) -> Cell:
    if task == target:
        return group_cell(runs.cell(line, task), "its own task")
    group = _across(runs, line, task, target)
    if not group:
        return Cell(MISSING)
    reading = group[0].score.reading
    assert reading is not None
    return judged(group_cell(group, _READINGS[reading]), comparison, f"{runs.title(line)} on {target}")
