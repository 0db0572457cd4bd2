"""Compare a study that reproduces a published report with it: numbers and settings, row by row.

``values.csv`` has the published tables, ``settings.csv`` how each row was trained, ``absent.csv`` what no study
reproduces, and ``reports.toml`` the data and columns of each report.
"""

import csv
import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain, product
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from pipeline.data.tasks import read_extras
from pipeline.records.studies import Line
from pipeline.reporting.report import MISSING, Cell, Table, count, difference_cell, number, scores_cell
from pipeline.reporting.rows import epoch_scores
from pipeline.reporting.runs import Scored, StudyRuns, records_of, runs_of
from pipeline.settings.kinds import KINDS, Method
from pipeline.settings.recipe import Recipe
from pipeline.settings.study import Published, Study
from pipeline.stats.metrics import overall
from pipeline.system.errors import PipelineError
from pipeline.system.reading import backbone_text, read_toml

_FOLDER = Path(__file__).parent
_REPORTS: dict[str, Any] = read_toml(_FOLDER / "reports.toml")
_UNSTATED = "?"
"""The report does not say."""
Column = tuple[str, str]
"""Task, empty for all of them, and statistic."""
KEPT, PARAMETERS, SETTING = "", "parameters", "setting"
_OF_A_TASK = (KEPT, "best epoch", "best epoch and seed")
_OF_ALL_TASKS = ("mean", "normalised mean", "mean of best epochs", "best mean", PARAMETERS)


def published_tables(runs: StudyRuns) -> list[Table]:
    """What a study shows of the report that it names; nothing where it names none."""
    source = runs.study.published
    if source is None:
        return []
    epochs = _epochs_table(runs, source)
    return [
        *(_value_table(runs, source, name) for name in source.tables),
        *([epochs] if epochs is not None else []),
        *_settings_tables(runs, source),
        _setting_table(runs, source),
    ]


def published_mistakes(study: Study) -> list[str]:
    """The tables, rows and columns that a study names and its report lacks."""
    source = study.published
    if source is None:
        return []
    try:
        values = published_values(source)
    except PipelineError as error:
        return [str(error)]
    named, columns = dict[str, None](), dict.fromkeys(source.tasks)
    for row in map(study.row, study.methods):
        names = row.published or ()
        as_list = [names] if isinstance(names, str) else names.values() if isinstance(names, dict) else names
        named |= dict.fromkeys(as_list)
        columns |= dict.fromkeys(row.published_columns or ())
    asked: dict[str, tuple[Iterable[str], set[str]]] = {
        "row": (named, {value.row for value in values}),
        "column": (columns, {value.metric for value in values}),
        "table of epochs": (source.curves, {t for t in source.curves if published_epochs(source.report, t)}),
    }
    return [
        f"published: no {what} '{name}' in {source.report}, {', '.join(source.tables)} ({source.split}): there are"
        f" {', '.join(sorted(known))}"
        for what, (names, known) in asked.items()
        for name in names
        if name not in known
    ]


class Value(NamedTuple):
    """A cell of a published table."""

    table: str
    row: str
    metric: str
    value: float | None
    """A fraction; None where the report's cell is empty or cannot be read."""
    flag: str


def _read(name: str) -> list[list[str]]:
    """The lines of a CSV file of this folder, without its heads."""
    with (_FOLDER / name).open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))[1:]


def _pairs(text: str) -> list[tuple[str, str]]:
    """``key=value; key=value``, split."""
    return [(key, value) for key, _, value in (part.partition("=") for part in text.split("; "))]


@cache
def tables() -> dict[tuple[str, str, str], list[Value]]:
    """The cells of every table by report, table and split, in their order."""
    cells = defaultdict[tuple[str, str, str], list[Value]](list)
    for report, table, split, row, values, flag in _read("values.csv"):
        for metric, value in _pairs(values):
            whole = statistic_of(report, metric) in (PARAMETERS, SETTING) or metric == "train_loss"
            scale = 100 if _REPORTS[report]["percent"] and not whole else 1
            number = float(value) / scale if value else None
            cells[report, table, split].append(Value(table, row, metric, number, flag))
    return dict(cells)


def absent_rows() -> list[list[str]]:
    """The rows of published tables that no study has, or that differ in one: report, table, split, row and the reason.

    An empty row stands for all rows of the table.
    """
    return _read("absent.csv")


@cache
def all_settings() -> tuple[tuple[str, str, str, str, str, Any], ...]:
    """The settings of ``settings.csv``: report, table, row, task, key and value; ``?`` where the report does not say.

    An empty table, row or task stands for all; a later setting overrides an earlier one that holds for the same row.
    The key is a flat key of a recipe, ``method``, or ``optimizer``. The file's last column holds ``key=value`` or, for
    one task, ``task.key=value``.
    """

    def parsed(value: str) -> Any:
        try:
            return json.loads(value)
        except ValueError:
            return value

    return tuple(
        (report, table, row, *name.rpartition(".")[::2], parsed(value))
        for report, table, row, settings in _read("settings.csv")
        for name, value in _pairs(settings)
    )


def settings_of(report: str, table: str, row: str, task: str) -> dict[str, Any]:
    """What a report says of one of its rows on one of our tasks, by key."""
    asked = (report, table, row, task)
    return {
        key: value
        for *place, key, value in all_settings()
        if all(own in ("", wanted) for own, wanted in zip(place, asked, strict=True))
    }


def statistic_of(report: str, metric: str) -> str:
    """What a column holds; empty: the score of a task at the kept epoch, the mean over seeds."""
    return _REPORTS[report].get("columns", {}).get(metric, KEPT)


def published_values(source: Published) -> list[Value]:
    """The cells of published tables, in their order.

    Raises:
        PipelineError: there is no such table.
    """
    there, places = tables(), [(source.report, table, source.split) for table in source.tables]
    if missing := [place for place in places if place not in there]:
        known = "; ".join(sorted(f"{report}, {table} ({split})" for report, table, split in there))
        wanted = "'{1}' ({2}) of '{0}'".format(*missing[0])
        raise PipelineError(f"published: no table {wanted}: there are {known}")
    return [value for place in places for value in there[place]]


def published_epochs(report: str, table: str) -> dict[str, dict[str, float | None]]:
    """The rows of a published table of epochs by column; none where there is no such table."""
    epochs = defaultdict[str, dict[str, float | None]](dict)
    for value in tables().get((report, table, "train/dev"), []):
        epochs[value.row][value.metric] = value.value
    return epochs


def _tasks(runs: StudyRuns, source: Published) -> list[str]:
    """The targets that a published table has columns of."""
    return [task for task in runs.study.targets if task in source.tasks.values()]


def _lines(runs: StudyRuns, name: str) -> list[tuple[Line, str]]:
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


def _value_table(runs: StudyRuns, source: Published, name: str) -> Table:
    """A published table beside ours; it has its name where the study reproduces several."""
    values, tasks = published_values(source.model_copy(update={"table": name})), _tasks(runs, source)
    by_row = defaultdict[str, dict[Column, Value]](dict)
    for value in values:
        column = source.tasks.get(value.metric, ""), statistic_of(source.report, value.metric)
        by_row[value.row].setdefault(column, value)
    places = (*product(tasks, _OF_A_TASK), *product([""], _OF_ALL_TASKS))  # columns of tasks come first
    columns = [place for place in places if any(place in own for own in by_row.values())]
    heads = ["method"]
    for task, statistic in columns:
        what = "parameters, millions" if statistic == PARAMETERS else statistic
        head = ", ".join(part for part in (task, what) if part)
        heads += [f"{head}, {source.report}", f"{head}, ours", *(["points"] if statistic != PARAMETERS else [])]
    rows = []
    for row, own in by_row.items():
        cells = (_cells(runs, row, own.get(column), column, tasks) for column in columns)
        rows.append((Cell(row), *chain.from_iterable(cells)))
    best = ", ".join(dict.fromkeys(statistic for _, statistic in columns if "best" in statistic))
    place = {"report": source.report, "tables": name, "split": source.split}
    table = Table.named("published", heads, rows, best=best, **place)
    flags = dict.fromkeys(f"{value.row}: {value.flag}" for value in values if value.flag)
    why = (f"{row or 'All rows'}: {text}." for *there, row, text in absent_rows() if there == [*place.values()])
    table = replace(table, notes=(*table.notes, *flags, *why))
    stem = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    several = len(source.tables) > 1
    return replace(table, name=f"published-{stem}", title=f"{table.title}: {name}") if several else table


def _cells(runs: StudyRuns, row: str, theirs: Value | None, column: Column, tasks: Sequence[str]) -> list[Cell]:
    """A published cell, ours, and the difference of scores."""
    ours = Cell(MISSING)
    for line, trained in _lines(runs, row):
        only = runs.study.row(line.row).published_columns
        if only is None or (theirs is not None and theirs.metric in only):
            ours = _ours(runs, line, trained, column, tasks)
            break
    value, flag = (theirs.value, theirs.flag) if theirs else (None, "")
    if column[1] == PARAMETERS:
        return [Cell(MISSING if value is None else f"{value:g}", value, detail=flag), ours]
    difference = ours.sort - value if isinstance(ours.sort, float) and value is not None else None
    return [Cell(number(value), value, detail=flag), ours, difference_cell(difference)]


def _ours(runs: StudyRuns, line: Line, trained: str, column: Column, tasks: Sequence[str]) -> Cell:
    task, statistic = column
    groups = {name: group for name in tasks if (group := runs.cell(line, name))}
    if trained:  # one task's model, on each task that it was read on
        group = runs.cell(line, trained)
        there = [name for name in tasks if group and all(name in scored.record.scores for scored in group)]
        groups = {name: [scored.on(name) for scored in group] for name in there}
    if task not in groups if task else set(groups) != set(tasks):
        return Cell(MISSING)
    values = _statistic(runs, {task: groups[task]} if task else groups, statistic)
    used = runs_of(scored for name, group in groups.items() if task in ("", name) for scored in group)
    if statistic == PARAMETERS:
        return Cell(f"{values[0]:.1f}", values[0], used)
    return scores_cell(values, used) if values else Cell(MISSING)


def _statistic(runs: StudyRuns, groups: Mapping[str, Sequence[Scored]], statistic: str) -> list[float]:
    """Our numbers for a column; none for the best mean at one epoch where no model answers all tasks.

    Args:
        groups: the runs of a line by the task that they are scored on, which need not be the one that they trained on;
            for a statistic of one task, those of that task alone.
    """
    first = next(iter(groups.values()))
    match statistic:
        case "":
            return [scored.value for scored in first]
        case "best epoch":
            return _best(runs, first)
        case "best epoch and seed":
            return [max(_best(runs, first))]
        case "mean of best epochs":
            return [mean(mean(_best(runs, group)) for group in groups.values())]
        case "best mean":
            is_joint = all(set(scored.record.trained_on) == set(groups) for scored in first)
            return [max(runs.curve(scored.record.run)["dev"]) for scored in first] if is_joint else []
        case "parameters":
            models = records_of(group[0] for group in groups.values())
            return [sum(record.cost.trainable_parameters for record in models) / 1e6]
    means = {task: mean(scored.value for scored in group) for task, group in groups.items()}
    both = overall(means, {task: group[0].score.metric for task, group in groups.items()})
    return [both[statistic == "normalised mean"]]


def _best(runs: StudyRuns, group: Iterable[Scored]) -> list[float]:
    """The best scores over the epochs on the validation rows; the last of a task that the run did not train on."""
    curves = [(runs.dev_curve(scored), scored.score.dev) for scored in group]
    return [last if curve is None else max(curve.tolist()) for curve, last in curves]


_OF_EPOCHS = (("training loss", ("train_loss",)), ("train", ("train_acc", "train_r")), ("dev", ("dev_acc", "dev_r")))


def _epochs_table(runs: StudyRuns, source: Published) -> Table | None:
    """The published scores of each epoch beside ours; None where the study names no table of them."""
    rows, scores = [], epoch_scores(runs)
    for table, curve in source.curves.items():
        line = Line(curve.row)
        ours, used = scores[(scores["method"] == line) & (scores["target"] == curve.task)], runs.cell(line, curve.task)
        for epoch, theirs in enumerate(published_epochs(source.report, table).values(), start=1):
            row = {"table": Cell(table), "epoch": Cell(str(epoch), epoch)}
            for part, names in _OF_EPOCHS:
                known = next((theirs[name] for name in names if name in theirs), None)
                values = ours["loss" if part == "training loss" else part][ours["epoch"] == epoch].dropna().tolist()
                row[f"{part}, {source.report}"] = Cell(number(known), known)
                row[f"{part}, ours"] = scores_cell(values, runs_of(used)) if values else Cell(MISSING)
            rows.append(row)
    return Table.of("published-epochs", rows)


def _settings_tables(runs: StudyRuns, source: Published) -> Iterator[Table]:
    """The settings of published rows that are not ours, and those that the report does not give for some row."""
    differing = defaultdict[tuple[str, ...], tuple[dict[str, None], dict[str, None]]](lambda: ({}, {}))
    unstated = defaultdict[str, defaultdict[str, dict[str, None]]](lambda: defaultdict(dict))
    for table, name, line, task, group in _trained(runs, source):
        theirs, method = settings_of(source.report, table, name, task), runs.study.row(line.row).method
        recipe = runs.recipe_of(group[0])
        for key, (their, our) in differences(theirs, recipe, method).items():
            tasks, used = differing[table, name, key, their, our]
            tasks[task] = None
            used |= dict.fromkeys(runs_of(group))
        for key, value in theirs.items():
            if value == _UNSTATED and not KINDS[method].is_ensemble:
                unstated[key][_text(_our_settings(recipe, method)[key])][task] = None
    if differing:
        rows = (
            (*map(Cell, (table, name, key.replace("_", " "), ", ".join(tasks), their)), Cell(our, our, tuple(used)))
            for (table, name, key, their, our), (tasks, used) in differing.items()
        )
        columns = ("table", "method", "setting", "tasks", source.report, "ours")
        yield Table.named("published-differences", columns, rows)
    if unstated:
        cells = (
            tuple(map(Cell, (key.replace("_", " "), ", ".join(tasks), our)))
            for key, values in unstated.items()
            for our, tasks in values.items()
        )
        yield Table.named("published-unstated", ("setting", "tasks", "ours"), cells)


def _trained(runs: StudyRuns, source: Published) -> Iterator[tuple[str, str, Line, str, list[Scored]]]:
    """The table and name of each published row, the line of the study that stands for it, and its runs on each task."""
    values = published_values(source)
    measured = {(value.table, source.tasks.get(value.metric, "")) for value in values}
    for table, name in dict.fromkeys((value.table, value.row) for value in values):
        tasks = [task for task in _tasks(runs, source) if (table, task) in measured]
        for line, trained in _lines(runs, name):
            for task in [trained] if trained else tasks:
                if group := runs.cell(line, task):
                    yield table, name, line, task, group


def differences(theirs: Mapping[str, Any], recipe: Recipe, method: Method) -> dict[str, tuple[str, str]]:
    """The settings that are stated and not ours, by key: theirs and ours as text.

    A setting without effect on our recipe, whose part is at its default there, still differs: the report had it.
    """
    ours, trains = _our_settings(recipe, method), not KINDS[method].is_ensemble

    def same(one: Any, other: Any) -> bool:
        are_numbers = isinstance(one, float | int) and isinstance(other, float | int)
        return math.isclose(one, other) if are_numbers else bool(one == other)

    return {
        key: (_text(value), _text(ours[key]))
        for key, value in theirs.items()
        if value != _UNSTATED and (trains or key == "method") and not same(value, ours[key])
    }


def _our_settings(recipe: Recipe, method: Method) -> dict[str, Any]:
    """The flat values of a row's resolved recipe, each rate that follows another with its value."""
    values = {"method": method, "optimizer": "AdamW", **recipe.flat()}
    for key in ("backbone_learning_rate", "head_learning_rate", "gate_learning_rate"):
        values[key] = values[key] or values["learning_rate"]
    if values["embedding_learning_rate"] is None and values["layer_decay"] == 1:
        values["embedding_learning_rate"] = values["backbone_learning_rate"]
    values["steps_per_epoch"] = values["steps_per_epoch"] or values["max_steps_per_epoch"]
    values["extra"] = [str(source) for source in read_extras(values["extra"])]
    return values


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or MISSING
    return MISSING if value is None else str(value).lower() if isinstance(value, bool) else f"{value}"


def _setting_table(runs: StudyRuns, source: Published) -> Table:
    """The published data and backbone beside ours."""
    report = _REPORTS[source.report]
    rows = [
        ("backbone", report["backbone"], backbone_text(runs.result.backbone)),
        ("seeds", report["seeds"], str(len(runs.study.seeds))),
    ]
    for task in _tasks(runs, source):
        own = [scored for scored in runs.scored if scored.entry.target == task and scored.entry.rows is None]
        train, known = report["rows"].get(task, (None, None))
        for part, theirs, ours in (
            ("training", train, {size for scored in own if (size := runs.train_rows(scored))}),
            ("scored", known, {scored.score.scored_rows for scored in own}),
        ):
            rows.append((f"{task}, {part} rows", count(theirs), " / ".join(map(count, sorted(ours))) or MISSING))
    return Table.named("published-setting", ("setting", source.report, "ours"), (tuple(map(Cell, row)) for row in rows))
