"""Published numbers and settings beside those of the study's rows."""

import math
import re
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from pipeline.data.tasks import read_extras
from pipeline.records.studies import Line
from pipeline.reporting.published import values as printed
from pipeline.reporting.report import MISSING, Cell, Table, count, difference_cell, number, scores_cell
from pipeline.reporting.runs import Scored, StudyRuns, runs_of
from pipeline.reporting.scores import epoch_scores
from pipeline.settings.kinds import KINDS, Method
from pipeline.settings.recipe import Recipe
from pipeline.settings.study import Published
from pipeline.stats.metrics import overall
from pipeline.system.reading import backbone_text

UNSTATED = "?"
"""The report does not say."""
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


def _parameters(runs: StudyRuns, groups: Groups) -> list[float]:
    models = {scored.record.run: scored.record for group in groups.values() for scored in group[:1]}
    return [sum(record.cost.trainable_parameters for record in models.values()) / 1e6]


_OF_A_TASK: dict[str, Callable[[StudyRuns, Groups, str], list[float]]] = {
    printed.KEPT: lambda runs, groups, task: [scored.value for scored in groups[task]],
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
    printed.PARAMETERS: _parameters,
}


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
    if statistic == printed.PARAMETERS:
        return Cell(f"{values[0]:.1f}", values[0], used)
    return scores_cell(values, used)


def value_table(runs: StudyRuns, source: Published, name: str) -> Table:
    """A published table beside ours; it has its name where the study reproduces several."""
    values, tasks = printed.published_values(source.model_copy(update={"table": name})), tasks_of(runs, source)
    # Columns of tasks come first.
    places = [*product(tasks, _OF_A_TASK), *product([""], _OF_ALL_TASKS)]
    columns: dict[Column, list[str]] = {place: [] for place in places}
    for metric in dict.fromkeys(value.metric for value in values):
        column = source.tasks.get(metric, ""), printed.statistic_of(source.report, metric)
        if column in columns:
            columns[column].append(metric)
    columns = {column: metrics for column, metrics in columns.items() if metrics}
    known = {(value.row, value.metric): value for value in values}
    rows = []
    for row in dict.fromkeys(value.row for value in values):
        cells = [Cell(row)]
        for column, metrics in columns.items():
            cells += _cells(runs, row, next((known[row, m] for m in metrics if (row, m) in known), None), column, tasks)
        rows.append(tuple(cells))
    heads = ["method"]
    for task, statistic in columns:
        what = "parameters, millions" if statistic == printed.PARAMETERS else statistic
        head = ", ".join(part for part in (task, what) if part)
        heads += [f"{head}, {source.report}", f"{head}, ours", *(["points"] if statistic != printed.PARAMETERS else [])]
    shown = Table.named(
        "published", heads, rows,
        report=source.report, tables=name, split=source.split,
        best=", ".join(dict.fromkeys(statistic for _, statistic in columns if "best" in statistic)),
    )  # fmt: skip
    flags = dict.fromkeys(f"{value.row}: {value.flag}" for value in values if value.flag)
    place = [source.report, name, source.split]
    why = (f"{row or 'All rows'}: {reason}." for *there, row, reason in printed.absent_rows() if there == place)
    shown = replace(shown, notes=(*shown.notes, *flags, *why))
    stem = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    several = len(source.tables) > 1
    return replace(shown, name=f"published-{stem}", title=f"{shown.title}: {name}") if several else shown


def _cells(runs: StudyRuns, row: str, theirs: printed.Value | None, column: Column, tasks: Sequence[str]) -> list[Cell]:
    """A published cell, ours, and the difference of scores."""
    ours = Cell(MISSING)
    for line, trained in lines_of(runs, row):
        only = runs.study.row(line.row).published_columns
        if only is None or (theirs is not None and theirs.metric in only):
            ours = _ours(runs, line, trained, column, tasks)
            break
    value, flag = (theirs.value, theirs.flag) if theirs else (None, "")
    if column[1] == printed.PARAMETERS:
        return [Cell(MISSING if value is None else f"{value:g}", value, detail=flag), ours]
    difference = ours.sort - value if isinstance(ours.sort, float) and value is not None else None
    return [Cell(number(value), value, detail=flag), ours, difference_cell(difference)]


_OF_EPOCHS = (("training loss", ("train_loss",)), ("train", ("train_acc", "train_r")), ("dev", ("dev_acc", "dev_r")))


def epochs_table(runs: StudyRuns, source: Published) -> Table | None:
    """The published scores of each epoch beside ours; None where the study names no table of them."""
    rows, scores = [], epoch_scores(runs)
    for table, curve in source.curves.items():
        line = Line(curve.row)
        ours = scores[(scores["method"] == line) & (scores["target"] == curve.task)]
        for epoch, theirs in enumerate(printed.published_epochs(source.report, table).values(), start=1):
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


def our_settings(recipe: Recipe, method: Method) -> dict[str, Any]:
    """The flat values of a row's resolved recipe, each rate that follows another with its value."""
    values = {"method": method, "optimizer": "AdamW", **recipe.flat()}
    for key in ("backbone_learning_rate", "head_learning_rate", "gate_learning_rate"):
        values[key] = values[key] or values["learning_rate"]
    if values["embedding_learning_rate"] is None and values["layer_decay"] == 1:
        values["embedding_learning_rate"] = values["backbone_learning_rate"]
    values["steps_per_epoch"] = values["steps_per_epoch"] or values["max_steps_per_epoch"]
    values["extra"] = [str(source) for source in read_extras(values["extra"])]
    return values


def differences(theirs: Mapping[str, Any], recipe: Recipe, method: Method) -> dict[str, tuple[str, str]]:
    """The settings that are stated and not ours, by key: theirs and ours as text.

    A setting without effect on our recipe, whose part is at its default there, still differs: the report had it.
    """
    ours, trains = our_settings(recipe, method), not KINDS[method].is_ensemble

    def same(one: Any, other: Any) -> bool:
        are_numbers = isinstance(one, float | int) and isinstance(other, float | int)
        return math.isclose(one, other) if are_numbers else bool(one == other)

    return {
        key: (_text(value), _text(ours[key]))
        for key, value in theirs.items()
        if value != UNSTATED and (trains or key == "method") and not same(value, ours[key])
    }


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or MISSING
    return MISSING if value is None else str(value).lower() if isinstance(value, bool) else f"{value}"


def _trained(runs: StudyRuns, source: Published) -> Iterator[tuple[str, str, Line, str, list[Scored]]]:
    """The table and name of each published row, the line of the study that stands for it, and its runs on each task."""
    values = printed.published_values(source)
    measured = {(value.table, source.tasks.get(value.metric, "")) for value in values}
    for table, name in dict.fromkeys((value.table, value.row) for value in values):
        tasks = [task for task in tasks_of(runs, source) if (table, task) in measured]
        for line, trained in lines_of(runs, name):
            for task in [trained] if trained else tasks:
                if group := runs.cell(line, task):
                    yield table, name, line, task, group


def settings_tables(runs: StudyRuns, source: Published) -> Iterator[Table]:
    """The settings of published rows that are not ours, and those that the report does not give for some row."""
    differing: dict[tuple[str, str, str, str, str], tuple[dict[str, None], dict[str, None]]] = {}
    unstated: dict[str, dict[str, dict[str, None]]] = {}
    for table, name, line, task, group in _trained(runs, source):
        theirs, method = printed.settings_of(source.report, table, name, task), runs.study.row(line.row).method
        recipe = runs.recipe_of(group[0])
        ours = our_settings(recipe, method)
        for key, (their, our) in differences(theirs, recipe, method).items():
            tasks, used = differing.setdefault((table, name, key, their, our), ({}, {}))
            tasks[task] = None
            used.update(dict.fromkeys(runs_of(group)))
        for key, value in theirs.items():
            if value == UNSTATED and not KINDS[method].is_ensemble:
                unstated.setdefault(key, {}).setdefault(_text(ours[key]), {})[task] = None
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


def setting_table(runs: StudyRuns, source: Published) -> Table:
    """The published data and backbone beside ours."""
    report = printed.REPORTS[source.report]
    rows = [
        ("backbone", report["backbone"], backbone_text(runs.result.backbone)),
        ("seeds", report["seeds"], str(len(runs.study.seeds))),
    ]
    for task in tasks_of(runs, source):
        own = [scored for scored in runs.scored if scored.entry.target == task and scored.entry.rows is None]
        train, known = report["rows"].get(task, (None, None))
        for part, theirs, ours in (
            ("training", train, {size for scored in own if (size := runs.train_rows(scored))}),
            ("scored", known, {scored.score.scored_rows for scored in own}),
        ):
            rows.append((f"{task}, {part} rows", count(theirs), " / ".join(map(count, sorted(ours))) or MISSING))
    return Table.named("published-setting", ("setting", source.report, "ours"), (tuple(map(Cell, row)) for row in rows))


def published_tables(runs: StudyRuns) -> list[Table]:
    """What a study shows of the report that it names; nothing where it names none."""
    source = runs.study.published
    if source is None:
        return []
    epochs = epochs_table(runs, source)
    tables = [value_table(runs, source, name) for name in source.tables] + ([epochs] if epochs is not None else [])
    return [*tables, *settings_tables(runs, source), setting_table(runs, source)]
