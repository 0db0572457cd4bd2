"""Published numbers beside ours."""

import csv
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

from pipeline.records.studies import Line
from pipeline.reporting.cells import difference_cell, scores_cell
from pipeline.reporting.epochs import epoch_scores
from pipeline.reporting.report import Cell, Table
from pipeline.reporting.runs import Scored, StudyRuns, runs_of
from pipeline.reporting.text import MISSING, number
from pipeline.settings.kinds import KINDS
from pipeline.settings.sections import Published
from pipeline.settings.study import Study
from pipeline.stats.metrics import overall
from pipeline.system.errors import PipelineError
from pipeline.system.reading import read_toml

FILE = Path(__file__).with_name("published.csv")
SETTINGS = read_toml(FILE.with_suffix(".toml"))
ABSENT = FILE.with_name("published_absent.csv")

KEPT, PARAMETERS, SETTING = "", "parameters", "setting"


class Value(NamedTuple):
    """A cell of a published table."""

    table: str
    row: str
    metric: str
    value: float | None
    """A fraction; None where the report's cell is empty or cannot be read."""
    flag: str


class Absent(NamedTuple):
    """A row of a published table that no study has, or that it has otherwise, and why."""

    report: str
    table: str
    split: str
    row: str
    """Empty: all rows of the table."""
    why: str


@cache
def tables() -> dict[tuple[str, str, str], list[Value]]:
    """The cells of every table by report, table and split, in their order."""
    cells: dict[tuple[str, str, str], list[Value]] = {}
    with FILE.open(encoding="utf-8", newline="") as file:
        for report, table, split, row, metric, value, flag in list(csv.reader(file))[1:]:
            whole = statistic_of(report, metric) in (PARAMETERS, SETTING) or metric == "train_loss"
            scale = 100 if SETTINGS[report]["percent"] and not whole else 1
            cell = Value(table, row, metric, float(value) / scale if value else None, flag)
            cells.setdefault((report, table, split), []).append(cell)
    return cells


@cache
def absent_rows() -> tuple[Absent, ...]:
    """What the studies leave out, with the reasons."""
    with ABSENT.open(encoding="utf-8", newline="") as file:
        return tuple(Absent(*line) for line in list(csv.reader(file))[1:])


def statistic_of(report: str, metric: str) -> str:
    """What a column holds; empty: the score of a task at the kept epoch, the mean over seeds."""
    return SETTINGS[report].get("columns", {}).get(metric, KEPT)


def published_values(source: Published) -> list[Value]:
    """The cells of published tables, in their order.

    Raises:
        PipelineError: there is no such table.
    """
    there, places = tables(), [(source.report, table, source.split) for table in source.tables]
    for place in places:
        if place not in there:
            known = "; ".join(sorted(f"{report}, {table} ({split})" for report, table, split in there))
            wanted = f"'{place[1]}' ({source.split}) of '{source.report}'"
            raise PipelineError(f"published: no table {wanted}: there are {known}")
    return [value for place in places for value in there[place]]


def published_epochs(report: str, table: str) -> dict[str, dict[str, float | None]]:
    """The rows of a published table of epochs by column; none where there is no such table."""
    epochs: dict[str, dict[str, float | None]] = {}
    for value in tables().get((report, table, "train/dev"), []):
        epochs.setdefault(value.row, {})[value.metric] = value.value
    return epochs


def published_mistakes(study: Study) -> list[str]:
    """The rows and columns that a study names and its published table lacks."""
    source = study.published
    if source is None:
        return []
    try:
        values = published_values(source)
    except PipelineError as error:
        return [str(error)]
    rows, columns = sorted({v.row for v in values}), sorted({v.metric for v in values})
    named: dict[str, None] = {}
    asked = dict.fromkeys(source.tasks)
    for name in study.methods:
        own = study.row(name).published
        named |= dict.fromkeys(own.values() if isinstance(own, dict) else study.published_names(name))
        asked |= dict.fromkeys(study.row(name).published_columns or ())
    where = f"in {source.report}, {', '.join(source.tables)} ({source.split}): there are"
    return [
        *(f"published: no row '{row}' {where} {', '.join(rows)}" for row in named if row not in rows),
        *(f"published.tasks: no column '{c}' {where} {', '.join(columns)}" for c in asked if c not in columns),
        *(
            f"published.curves: no table of epochs '{table}' of '{source.report}'"
            for table in source.curves
            if not published_epochs(source.report, table)
        ),
        *(
            f"published.curves.{table}: the study has no row '{curve.row}' on {curve.task}"
            for table, curve in source.curves.items()
            if curve.row not in study.methods or curve.task not in study.targets_of(curve.row)
        ),
    ]


def tasks_of(runs: StudyRuns, source: Published) -> list[str]:
    """The targets that a published table has columns of."""
    return [task for task in runs.study.targets if task in source.tasks.values()]


def lines_of(runs: StudyRuns, name: str) -> list[tuple[Line, str]]:
    """The lines that a published table calls ``name``, several where each has some of its columns.

    With each the task that its model was trained on, where the name is that of one task's model; else empty.
    """
    lines = [(line, "") for line in runs.lines if name in runs.study.published_names(line.row, line.source)]
    for line in runs.lines:
        own = runs.study.row(line.row)
        by_task = own.published if isinstance(own.published, dict) and not KINDS[own.method].is_by_source else {}
        lines += [(line, task) for task, called in by_task.items() if called == name]
    return lines


Groups = Mapping[str, Sequence[Scored]]
"""The runs of a line by the task that they are scored on, which need not be the one that they trained on."""


def _curve(runs: StudyRuns, scored: Scored) -> list[float]:
    """The scores on the validation rows, by epoch; only the last of a task that the run itself did not train on."""
    scores = runs.dev_curve(scored)
    return [scored.score.dev] if scores is None else scores.tolist()


def _best(runs: StudyRuns, groups: Groups, task: str) -> list[float]:
    return [max(_curve(runs, scored)) for scored in groups[task]]


def _means(groups: Groups) -> dict[str, float]:
    return {task: statistics.mean(scored.value for scored in group) for task, group in groups.items()}


def _overall(groups: Groups, which: int) -> list[float]:
    metrics = {task: group[0].score.metric for task, group in groups.items()}
    return [overall(_means(groups), metrics)[which]]


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

Column = tuple[str, str]
"""Task, empty for all of them, and statistic."""


def _columns(source: Published, values: Sequence[Value], tasks: Sequence[str]) -> dict[Column, list[str]]:
    """The columns of a study's table, those of tasks first, each with what the published tables call it."""
    columns: dict[Column, list[str]] = {}
    for metric in dict.fromkeys(value.metric for value in values):
        task, statistic = source.tasks.get(metric, ""), statistic_of(source.report, metric)
        if (task in tasks and statistic in _OF_A_TASK) or (not task and statistic in _OF_ALL_TASKS):
            columns.setdefault((task, statistic), []).append(metric)
    of_tasks = [(task, statistic) for task in tasks for statistic in _OF_A_TASK]
    order = [*of_tasks, *(("", statistic) for statistic in _OF_ALL_TASKS)]
    return {column: columns[column] for column in order if column in columns}


def _ours(runs: StudyRuns, line: Line, trained: str, column: Column, tasks: Sequence[str]) -> Cell:
    task, statistic = column
    groups = {name: group for name in tasks if (group := runs.cell(line, name))}
    if trained:  # one task's model, on each task that it was read on
        own = runs.cell(line, trained)
        there = [name for name in tasks if own and all(name in scored.record.scores for scored in own)]
        groups = {name: [scored.on(name) for scored in own] for name in there}
    if task not in groups if task else set(groups) != set(tasks):
        return Cell(MISSING)
    values = _OF_A_TASK[statistic](runs, groups, task) if task else _OF_ALL_TASKS[statistic](runs, groups)
    if not values:
        return Cell(MISSING)
    used = runs_of(scored for name, group in groups.items() if task in ("", name) for scored in group)
    if statistic == PARAMETERS:
        return Cell(f"{values[0]:.1f}", values[0], used)
    return scores_cell(values, used)


def published_tables(runs: StudyRuns) -> tuple[Table, ...]:
    """Each published table beside ours; none where the study names none."""
    source = runs.study.published
    if source is None:
        return ()
    return tuple(_published_table(runs, source, table, len(source.tables) == 1) for table in source.tables)


def _published_table(runs: StudyRuns, source: Published, name: str, alone: bool) -> Table:
    values = published_values(source.model_copy(update={"table": name}))
    tasks = tasks_of(runs, source)
    columns = _columns(source, values, tasks)
    known = {(value.row, value.metric): value for value in values}
    rows = []
    for row in dict.fromkeys(value.row for value in values):
        cells = [Cell(row)]
        for column, metrics in columns.items():
            theirs = next((known[row, each] for each in metrics if (row, each) in known), None)
            line, trained = next(
                ((each, own) for each, own in lines_of(runs, row) if _has(runs, each, theirs)), (None, "")
            )
            cells += _cells(
                theirs, Cell(MISSING) if line is None else _ours(runs, line, trained, column, tasks), column
            )
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
    why = (
        f"{each.row or 'All rows'}: {each.why}."
        for each in absent_rows()
        if (each.report, each.table, each.split) == (source.report, name, source.split)
    )
    notes = (*shown.notes, *flags, *why)
    if alone:
        return replace(shown, notes=notes)
    stem = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return replace(shown, name=f"published-{stem}", title=f"{shown.title}: {name}", notes=notes)


def _cells(theirs: Value | None, ours: Cell, column: Column) -> list[Cell]:
    """A published cell, ours, and the difference of scores."""
    value, flag = (theirs.value, theirs.flag) if theirs else (None, "")
    if column[1] == PARAMETERS:
        return [Cell(MISSING if value is None else f"{value:g}", value, detail=flag), ours]
    mine = ours.sort if isinstance(ours.sort, float) else None
    difference = mine - value if mine is not None and value is not None else None
    return [Cell(number(value), value, detail=flag), ours, difference_cell(difference)]


def _has(runs: StudyRuns, line: Line, value: Value | None) -> bool:
    only = runs.study.row(line.row).published_columns
    return only is None or (value is not None and value.metric in only)


_OF_EPOCHS = (("training loss", ("train_loss",)), ("train", ("train_acc", "train_r")), ("dev", ("dev_acc", "dev_r")))


def published_epochs_table(runs: StudyRuns) -> Table | None:
    """The published scores of each epoch beside ours; None where the study names no table of them."""
    source = runs.study.published
    rows = []
    for table, curve in source.curves.items() if source is not None else ():
        assert source is not None
        scores, group = epoch_scores(runs), runs.cell(Line(curve.row), curve.task)
        own = scores[(scores["method"] == Line(curve.row)) & (scores["target"] == curve.task)]
        for epoch, theirs in enumerate(published_epochs(source.report, table).values(), start=1):
            there = own[own["epoch"] == epoch]
            row = {"table": Cell(table), "epoch": Cell(str(epoch), epoch)}
            for part, names in _OF_EPOCHS:
                known = next((theirs[name] for name in names if name in theirs), None)
                mine = there[names[0].partition("_")[2] if part == "training loss" else part].dropna().tolist()
                row[f"{part}, {source.report}"] = Cell(number(known), known)
                row[f"{part}, ours"] = scores_cell(mine, runs_of(group)) if mine else Cell(MISSING)
            rows.append(row)
    return Table.of("published-epochs", rows)
