"""Published numbers beside those of the study's rows."""

import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from pipeline.records.studies import Line
from pipeline.reporting.cells import difference_cell, scores_cell
from pipeline.reporting.epochs import epoch_scores
from pipeline.reporting.published.values import (
    KEPT,
    PARAMETERS,
    Value,
    absent_rows,
    published_epochs,
    published_values,
    statistic_of,
)
from pipeline.reporting.report import Cell, Table
from pipeline.reporting.runs import Scored, StudyRuns, runs_of
from pipeline.reporting.text import MISSING, number
from pipeline.settings.sections import Published
from pipeline.stats.metrics import overall

Groups = Mapping[str, Sequence[Scored]]
"""The runs of a line by the task that they are scored on, which need not be the one that they trained on."""
Column = tuple[str, str]
"""Task, empty for all of them, and statistic."""


def tasks_of(runs: StudyRuns, source: Published) -> list[str]:
    """The targets that a published table has columns of."""
    return [task for task in runs.study.targets if task in source.tasks.values()]


def lines_of(runs: StudyRuns, name: str) -> list[tuple[Line, str]]:
    """The lines that a published table calls ``name``; several lines can fill different columns of one row.

    With each line stands the task that its model was trained on, where the name is that of one task's model; else
    empty.
    """
    lines = [(line, "") for line in runs.lines if name in runs.study.published_names(line.row, line.source)]
    for line in runs.lines:
        row = runs.study.row(line.row)
        if isinstance(row.published, dict) and not row.kind.is_by_source:
            lines += [(line, task) for task, called in row.published.items() if called == name]
    return lines


def _best(runs: StudyRuns, groups: Groups, task: str) -> list[float]:
    """The best scores over the epochs on the validation rows; the last of a task that the run did not train on."""
    curves = [(runs.dev_curve(scored), scored.score.dev) for scored in groups[task]]
    return [last if curve is None else max(curve.tolist()) for curve, last in curves]


def _overall(groups: Groups, which: int) -> list[float]:
    means = {task: statistics.mean(scored.value for scored in group) for task, group in groups.items()}
    return [overall(means, {task: group[0].score.metric for task, group in groups.items()})[which]]


def _best_mean(runs: StudyRuns, groups: Groups) -> list[float]:
    """The best mean at one epoch, where one model answers all tasks; empty where several do."""
    first = next(iter(groups.values()))
    if any(set(scored.record.trained_on) != set(groups) for scored in first):
        return []
    return [max(runs.curve(scored.record.run)["dev"]) for scored in first]


def _parameters(groups: Groups) -> list[float]:
    models = {scored.record.run: scored.record for group in groups.values() for scored in group[:1]}
    return [sum(record.cost.trainable_parameters for record in models.values()) / 1e6]


_OF_A_TASK: dict[str, Callable[[StudyRuns, Groups, str], list[float]]] = {
    KEPT: lambda runs, groups, task: [scored.value for scored in groups[task]],
    "best epoch": _best,
    "best epoch and seed": lambda runs, groups, task: [max(_best(runs, groups, task))],
}
_OF_ALL_TASKS: dict[str, Callable[[StudyRuns, Groups], list[float]]] = {
    "mean": lambda runs, groups: _overall(groups, 0),
    "normalised mean": lambda runs, groups: _overall(groups, 1),
    "mean of best epochs": lambda runs, groups: [
        statistics.mean(statistics.mean(_best(runs, groups, task)) for task in groups)
    ],
    "best mean": _best_mean,
    PARAMETERS: lambda runs, groups: _parameters(groups),
}


def _columns(source: Published, values: Sequence[Value], tasks: Sequence[str]) -> dict[Column, list[str]]:
    """The columns of a study's table, those of tasks first, each with what the published tables call it."""
    columns: dict[Column, list[str]] = {(task, statistic): [] for task in tasks for statistic in _OF_A_TASK}
    columns |= {("", statistic): [] for statistic in _OF_ALL_TASKS}
    for metric in dict.fromkeys(value.metric for value in values):
        column = source.tasks.get(metric, ""), statistic_of(source.report, metric)
        if column in columns:
            columns[column].append(metric)
    return {column: metrics for column, metrics in columns.items() if metrics}


def _ours(runs: StudyRuns, line: Line, trained: str, column: Column, tasks: Sequence[str]) -> Cell:
    task, statistic = column
    groups = {name: group for name in tasks if (group := runs.cell(line, name))}
    if trained:  # one task's model, on each task that it was read on
        group = runs.cell(line, trained)
        there = [name for name in tasks if group and all(name in scored.record.scores for scored in group)]
        groups = {name: [scored.on(name) for scored in group] for name in there}
    if task not in groups if task else set(groups) != set(tasks):
        return Cell(MISSING)
    values = _OF_A_TASK[statistic](runs, groups, task) if task else _OF_ALL_TASKS[statistic](runs, groups)
    if not values:
        return Cell(MISSING)
    used = runs_of(scored for name, group in groups.items() if task in ("", name) for scored in group)
    if statistic == PARAMETERS:
        return Cell(f"{values[0]:.1f}", values[0], used)
    return scores_cell(values, used)


def value_tables(runs: StudyRuns, source: Published) -> list[Table]:
    """Each published table beside ours."""
    tables = [_value_table(runs, source, name) for name in source.tables]
    if len(tables) == 1:
        return tables
    stems = (re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") for name in source.tables)
    return [
        replace(table, name=f"published-{stem}", title=f"{table.title}: {name}")
        for table, stem, name in zip(tables, stems, source.tables, strict=True)
    ]


def _value_table(runs: StudyRuns, source: Published, name: str) -> Table:
    values, tasks = published_values(source.model_copy(update={"table": name})), tasks_of(runs, source)
    columns = _columns(source, values, tasks)
    known = {(value.row, value.metric): value for value in values}
    rows = []
    for row in dict.fromkeys(value.row for value in values):
        cells = [Cell(row)]
        for column, metrics in columns.items():
            theirs = next((known[row, metric] for metric in metrics if (row, metric) in known), None)
            having = ((line, trained) for line, trained in lines_of(runs, row) if _has(runs, line, theirs))
            line, trained = next(having, (None, ""))
            ours = Cell(MISSING) if line is None else _ours(runs, line, trained, column, tasks)
            cells += _cells(theirs, ours, column)
        rows.append(tuple(cells))
    heads = ["method"]
    for task, statistic in columns:
        what = "parameters, millions" if statistic == PARAMETERS else statistic
        head = ", ".join(part for part in (task, what) if part)
        heads += [f"{head}, {source.report}", f"{head}, ours", *(["points"] if statistic != PARAMETERS else [])]
    shown = Table.named(
        "published", heads, rows,
        report=source.report, tables=name, split=source.split,
        best=", ".join(dict.fromkeys(statistic for _, statistic in columns if "best" in statistic)),
    )  # fmt: skip
    flags = dict.fromkeys(f"{value.row}: {value.flag}" for value in values if value.flag)
    place = (source.report, name, source.split)
    why = (f"{absent.row or 'All rows'}: {absent.why}." for absent in absent_rows() if absent[:3] == place)
    return replace(shown, notes=(*shown.notes, *flags, *why))


def _cells(theirs: Value | None, ours: Cell, column: Column) -> list[Cell]:
    """A published cell, ours, and the difference of scores."""
    value, flag = (theirs.value, theirs.flag) if theirs else (None, "")
    if column[1] == PARAMETERS:
        return [Cell(MISSING if value is None else f"{value:g}", value, detail=flag), ours]
    difference = ours.sort - value if isinstance(ours.sort, float) and value is not None else None
    return [Cell(number(value), value, detail=flag), ours, difference_cell(difference)]


def _has(runs: StudyRuns, line: Line, value: Value | None) -> bool:
    only = runs.study.row(line.row).published_columns
    return only is None or (value is not None and value.metric in only)


_OF_EPOCHS = (("training loss", ("train_loss",)), ("train", ("train_acc", "train_r")), ("dev", ("dev_acc", "dev_r")))


def epochs_table(runs: StudyRuns, source: Published) -> Table | None:
    """The published scores of each epoch beside ours; None where the study names no table of them."""
    rows, scores = [], epoch_scores(runs)
    for table, curve in source.curves.items():
        line = Line(curve.row)
        ours = scores[(scores["method"] == line) & (scores["target"] == curve.task)]
        for epoch, theirs in enumerate(published_epochs(source.report, table).values(), start=1):
            there = ours[ours["epoch"] == epoch]
            row = {"table": Cell(table), "epoch": Cell(str(epoch), epoch)}
            for part, names in _OF_EPOCHS:
                known = next((theirs[name] for name in names if name in theirs), None)
                values = there["loss" if part == "training loss" else part].dropna().tolist()
                used = runs_of(runs.cell(line, curve.task))
                row[f"{part}, {source.report}"] = Cell(number(known), known)
                row[f"{part}, ours"] = scores_cell(values, used) if values else Cell(MISSING)
            rows.append(row)
    return Table.of("published-epochs", rows)
