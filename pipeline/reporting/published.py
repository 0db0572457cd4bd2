"""Published numbers beside ours, and what differs between the two settings."""

import csv
import statistics
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from pipeline.reporting.cells import difference_cell, group_cell
from pipeline.reporting.report import Cell, Table
from pipeline.reporting.runs import StudyRuns
from pipeline.reporting.text import MISSING, backbone_text, number
from pipeline.settings.rows import Published
from pipeline.settings.study import Study
from pipeline.system.errors import PipelineError

FILE = Path(__file__).with_name("published.csv")
PERCENT = {"LiuShen", "Hayes"}
"""Reports that print percentages; the others print fractions."""


@dataclass(frozen=True)
class Setting:
    """What a report says of its experiments. The two releases of Quora's pairs cannot be compared with each other."""

    backbone: str = "google-bert/bert-base-uncased"
    seeds: str = "1"
    rows: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Rows of train and dev by task."""


_SMALL = {"sst": (8544, 1101), "sts": (6040, 863)}
_SETTINGS = {
    "Xu": Setting(rows={**_SMALL, "quora": (283_010, 40_429)}),
    "Wang": Setting(rows={**_SMALL, "quora": (283_010, 40_429)}),
    "LiuShen": Setting(rows={**_SMALL, "quora": (141_498, 20_212)}),
    "Hayes": Setting(seeds="2 to 3", rows={**_SMALL, "quora": (141_506, 20_212)}),
}


@dataclass(frozen=True)
class Value:
    table: str
    row: str
    metric: str
    value: float | None
    """A fraction; None where the report's cell is empty or cannot be read."""
    flag: str


def published_values(source: Published) -> tuple[Value, ...]:
    """The cells of published tables, in their order.

    Raises:
        PipelineError: there is no such table.
    """
    return tuple(value for table in source.tables for value in _values(source.report, table, source.split))


def _values(report: str, table: str, split: str) -> list[Value]:
    scale = 100 if report in PERCENT else 1
    values = [
        Value(table, line["row"], line["metric"], float(line["value"]) / scale if line["value"] else None, line["flag"])
        for line in _lines()
        if (line["report"], line["table"], line["split"]) == (report, table, split)
    ]
    if not values:
        known = sorted({f"{line['report']}, {line['table']} ({line['split']})" for line in _lines()})
        raise PipelineError(f"published: no table '{table}' ({split}) of '{report}': there are {'; '.join(known)}")
    return values


@cache
def _lines() -> list[dict[str, str]]:
    with FILE.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def published_mistakes(study: Study) -> list[str]:
    """The rows and columns that a study names and its published table lacks."""
    source = study.published
    if source is None:
        return []
    try:
        values = published_values(source)
    except PipelineError as error:
        return [str(error)]
    rows, columns = {value.row for value in values}, {value.metric for value in values}
    named: dict[str, None] = {}
    for name in study.methods:
        own = study.row(name).published
        named |= dict.fromkeys(own.values() if isinstance(own, dict) else study.published_names(name))
    where = f"in {source.report}, {', '.join(source.tables)} ({source.split})"
    known_rows, known_columns = ", ".join(sorted(rows)), ", ".join(sorted(columns))
    mistakes = [f"published: no row '{row}' {where}: there are {known_rows}" for row in named if row not in rows]
    wrong = [column for column in source.tasks if column not in columns]
    return mistakes + [f"published.tasks: no column '{name}' {where}: there are {known_columns}" for name in wrong]


def _tasks(runs: StudyRuns, source: Published) -> dict[str, list[str]]:
    """The published columns of each target: tables of one report may call a task's column by several names."""
    return {
        task: [metric for metric, named in source.tasks.items() if named == task]
        for task in dict.fromkeys(source.tasks.values())
        if task in runs.study.targets
    }


def published_table(runs: StudyRuns) -> Table | None:
    """The published tables beside ours; None where the study names none."""
    source = runs.study.published
    if source is None:
        return None
    values, tasks = published_values(source), _tasks(runs, source)
    several = len(source.tables) > 1
    lines = {name: line for line in runs.lines for name in runs.study.published_names(line.row, line.source)}
    columns = ["table", "method"] if several else ["method"]
    for task in tasks:
        columns += [f"{task}, {source.report}", f"{task}, ours", "points"]
    rows = []
    for table, name in dict.fromkeys((value.table, value.row) for value in values):
        cells = [Cell(table), Cell(name)] if several else [Cell(name)]
        for task, metrics in tasks.items():
            theirs = next((v for v in values if (v.table, v.row) == (table, name) and v.metric in metrics), None)
            group = runs.cell(lines[name], task) if name in lines else []
            known = theirs.value if theirs else None
            difference = statistics.mean(s.value for s in group) - known if group and known is not None else None
            flag = theirs.flag if theirs else ""
            cells += [Cell(number(known), known, detail=flag), group_cell(group), difference_cell(difference)]
        rows.append(tuple(cells))
    flags = dict.fromkeys(f"{value.row}: {value.flag}" for value in values if value.flag)
    notes = (
        f"{source.report}, {', '.join(source.tables)}, {source.split}; ours on dev. The differences are not tested: no"
        " predictions were published, and the settings are not the same.",
        *flags,
    )
    return Table("published", "Published numbers beside ours", tuple(columns), tuple(rows), notes)


def published_settings_table(runs: StudyRuns) -> Table | None:
    """The published setting beside ours; None where the study names no published table."""
    source = runs.study.published
    if source is None:
        return None
    setting = _SETTINGS.get(source.report, Setting(backbone=MISSING, seeds=MISSING))
    rows = [
        (Cell("backbone"), Cell(setting.backbone), Cell(backbone_text(runs.result.backbone))),
        (Cell("seeds"), Cell(setting.seeds), Cell(str(len(runs.study.seeds)))),
    ]
    for task in _tasks(runs, source):
        theirs = setting.rows.get(task)
        group = [scored for scored in runs.scored if scored.entry.target == task and scored.entry.rows is None]
        for part, known, ours in (
            ("training", theirs[0] if theirs else None, {scored.score.train_rows for scored in group}),
            ("dev", theirs[1] if theirs else None, {scored.score.rows for scored in group}),
        ):
            shown = " / ".join(f"{size:,}" for size in sorted(ours)) or MISSING
            rows.append((Cell(f"{task}, {part} rows"), Cell(f"{known:,}" if known else MISSING), Cell(shown)))
    notes = ("The published tasks come from the course's files; ours from --data or the Hub, whose splits may differ.",)
    columns = ("setting", source.report, "ours")
    return Table("published-setting", "What differs from the published setting", columns, tuple(rows), notes)
