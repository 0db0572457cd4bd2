"""Write ``index.html`` of a study, which loads nothing and runs only its own script, and of a folder of reports."""

import base64
import math
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
from pydantic import BaseModel, ConfigDict

from pipeline.records.run_record import RunRecord
from pipeline.records.studies import Line
from pipeline.reporting.build import TEMPLATES
from pipeline.reporting.report import MARKS, Cell, Figure, Report, Table, value_text
from pipeline.settings.kinds import KINDS
from pipeline.system.atomic import locked, write_json, write_text
from pipeline.system.errors import PipelineError, printable
from pipeline.system.reading import read_model

Pairs = list[tuple[str, str]]
_SHARED = ("Rows", "Made with", "Recipe", "Identity")
_PLANNED = ["learning_rate", "examples"]


def run_view(record: RunRecord, curve: pd.DataFrame | None, method: str) -> dict[str, Any]:
    """The values that ``run.html`` shows for a run in the row ``method``."""
    named = ("tasks", "sources", "kind", "seed")  # shown elsewhere on the page
    identity = {name: value for name, value in record.identity.items() if name not in named}
    for task in record.trained_on:
        identity[task] = {key: value for key, value in record.described(task).items() if key != "recipe"}
    # The sources of a warm start are candidates: the run may have started from none of them.
    are_candidates = KINDS[record.kind].is_one_adapter and not record.is_continued_adapter
    taken = "start candidate" if are_candidates else "source"
    identity |= {f"{taken}, run {source.run}": source.digest for source in record.sources}
    made_with = dict(record.provenance)
    if made_with.pop("dirty", False):
        # The commit alone does not identify the code that ran.
        made_with["commit"] = f"{made_with.get('commit')}, with changes that were not committed"
    made_with |= {"finished": record.finished_at} | ({"artifact": record.artifact} if record.artifact else {})
    return {
        "record": record,
        "row": method,
        "sources": "Start selected among" if are_candidates else "Built on",
        "label": f"{method}, {' + '.join(record.trained_on)}, {record.own.train_rows:,} rows, seed {record.seed}",
        "groups": {
            "Result": _result(record),
            "Cost": _pairs(record.cost.model_dump()),
            "Unchanged, sha256 after training": _pairs(record.unchanged),
            "Rows": _rows(record),
            "Made with": _pairs(made_with),
            "Recipe": _pairs(record.recipe.flat()),
            "Identity": _pairs(identity),
        },
        # The dropped columns follow from the recipe.
        "curve": pd.DataFrame() if curve is None else curve.drop(columns=_PLANNED, errors="ignore"),
        "scores": [] if curve is None else _scores(curve),
    }


def usual(views: Sequence[Mapping[str, Any]]) -> dict[str, Pairs]:
    """By group, the values that most runs with such a value share; removes them from the ``views``."""
    shared: dict[str, Pairs] = {}
    for title in _SHARED:
        values = defaultdict[str, Counter[str]](Counter)
        for name, value in (pair for view in views for pair in view["groups"][title]):
            values[name][value] += 1
        most = {name: counts.most_common(1)[0] for name, counts in values.items()}
        common = {name: value for name, (value, n) in most.items() if n > 1 and 2 * n > values[name].total()}
        for view in views:
            view["groups"][title] = [pair for pair in view["groups"][title] if pair not in common.items()]
        shared |= {title: [*common.items()]} if common else {}
    return shared


def _result(record: RunRecord) -> Pairs:
    start = [] if record.anchor is None else [("started from the adapter of", record.anchor)]
    pairs = [("kept epoch", str(record.best_epoch)), *start]
    for task, score in record.scores.items():
        before = "" if score.before is None else f", before training {score.before:.4f}"
        pairs.append((f"{task}, dev {score.metric}", f"{score.dev:.4f}{before if score.test is None else ''}"))
        if score.test is not None:
            pairs.append((f"{task}, test {score.metric}", f"{score.test:.4f}{before}"))
    return pairs


def _rows(record: RunRecord) -> Pairs:
    pairs = Pairs()
    for task in record.trained_on:
        rows = record.scores[task].model_dump(include={"train_rows", "rows", "dev_in_train"})
        if record.scores[task].test is not None:
            rows |= record.scores[task].model_dump(include={"test_rows", "test_in_train"})
        pairs += [(f"{task}, {name.replace('_', ' ')}", f"{count:,}") for name, count in rows.items()]
    return pairs


def _pairs(values: Mapping[str, Any], before: str = "") -> Pairs:
    pairs = []
    for key, value in values.items():
        name = f"{before}{key}".replace("_", " ")
        pairs += _pairs(value, f"{name}, ") if isinstance(value, Mapping) else [(name, value_text(value))]
    return pairs


def _scores(curve: pd.DataFrame) -> list[tuple[float, float]]:
    """Epoch and dev score at each point of a curve; empty with fewer than two points."""
    if not {"epoch", "dev"} <= set(curve.columns):
        return []
    scores = curve[["epoch", "dev"]].dropna().astype(float)
    return list(scores.itertuples(index=False, name=None)) if len(scores) > 1 else []


_MOST_NUMBERS = 64 * 1024
"""Largest CSV, in bytes, that the page embeds."""
_EMPTY = {"", "-", "–", "—"}


def write_page(report: Report, folder: Path) -> None:
    """Write ``folder/index.html`` with the figures from ``folder/figures``.

    All text is escaped. In addition, a content security policy allows only the hashes of the page's script and style,
    so the browser runs nothing else and loads nothing from anywhere.
    """
    labels = defaultdict[str, dict[str, None]](dict)  # the study rows in which every run appears
    for run, line in zip(report.results["run"], report.results["method"], strict=True):
        labels[run][report.study.title(line.row, line.source)] = None
    views = [
        run_view(record, report.curves.get(run), "; ".join(labels[run]) or record.kind)
        for run, record in report.records.items()
    ]
    page = TEMPLATES.get_template("index.html").render(
        report=report,
        pictures=[_picture(figure, folder / "figures") for figure in report.figures],
        results=_results_table(report),
        usual=usual(views),
        provenance=views,
        written=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    )
    write_text(folder / "index.html", printable(page))


def sort_key(cell: Cell) -> dict[str, str]:
    """The attribute that a sorted table orders a cell by; none if the cell's text is enough."""
    if cell.sort is None:
        return {"data-text": cell.text} if cell.verdict or cell.best else {}  # the browser sees their marks in the text
    if isinstance(cell.sort, str):
        return {"data-text": cell.sort}
    return {"data-number": f"{cell.sort:.7g}"} if math.isfinite(cell.sort) else {"data-text": ""}


def numeric_columns(table: Table) -> list[bool]:
    """For every column, whether it holds only numbers and gaps, and so is set flush right."""

    def is_text(cell: Cell) -> bool:
        if cell.sort is not None:
            return isinstance(cell.sort, str) and cell.sort not in _EMPTY
        return cell.text not in _EMPTY and re.fullmatch(r"[-−]?[\d,.]+(e-?\d+)?", cell.text) is None

    columns = range(len(table.columns))
    return [column > 0 and not any(is_text(row[column]) for row in table.rows) for column in columns]


def _picture(figure: Figure, folder: Path) -> dict[str, Any]:
    """A figure with its image and numbers as data URLs.

    An image in a data URL cannot run scripts or load anything, whatever text it contains.
    """
    svg = (folder / f"{figure.name}.svg").read_bytes()
    numbers = folder / f"{figure.name}.csv"
    box = re.search(rb'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)
    return {
        "figure": figure,
        "image": f"data:image/svg+xml;base64,{_base64(svg)}",
        # The size keeps the layout still while the page loads. Matplotlib has 72 points per inch, CSS 96 pixels.
        "size": [round(float(length) * 4 / 3) for length in box.groups()] if box else None,
        "numbers": f"data:text/csv;base64,{_base64(numbers.read_bytes())}"
        if numbers.is_file() and numbers.stat().st_size <= _MOST_NUMBERS
        else None,
    }


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _results_table(report: Report) -> Table:
    def cell(column: str, value: Any) -> Cell:
        if isinstance(value, Line):
            return Cell(report.study.title(value.row, value.source))
        if pd.isna(value):
            return Cell("-")
        # A seed is a name, not a quantity, so it has no thousands separator.
        text = str(value) if column == "seed" else value_text(value, 4 if column == "value" else None)
        sort = value if isinstance(value, str) else float(value)
        return Cell(text, sort, (value,) if column == "run" else ())

    columns = tuple(str(column).replace("_", " ") for column in report.results)
    rows = (tuple(cell(str(name), value) for name, value in row.items()) for row in report.results.to_dict("records"))
    return Table("results", "Runs", columns, tuple(rows))


SUMMARY = "summary.json"


class Summary(BaseModel):
    """A study's entry in the overview, stored as ``summary.json`` beside its page."""

    model_config = ConfigDict(frozen=True)

    name: str
    """The title of its page."""
    description: str
    finished: str
    """When its last run finished, as an ISO date and time; empty without runs."""
    verdict: str
    """What to use, and why, or else the first sentence of its findings."""
    runs: int
    missing: int


def write_overview(report: Report, folder: Path) -> None:
    """Write ``summary.json`` into a study's ``folder``, and ``index.html`` over all studies into the folder above.

    A study without a readable summary gets only a link.
    """
    summary = Summary(
        name=report.study.heading,
        description=report.study.description,
        finished=max((record.finished_at for record in report.records.values()), default=""),
        verdict=" ".join(report.advice[:2] or report.verdict[:1]),
        runs=len(report.records),
        missing=len(report.missing),
    )
    write_json(folder / SUMMARY, summary.model_dump())
    # If two studies end at once, the lock ensures that the last writer has read both.
    with locked(folder.parent / ".overview.lock"):
        studies: dict[str, Summary | None] = {}
        for page in sorted(folder.parent.glob("*/index.html")):
            studies[page.parent.name] = None
            with suppress(PipelineError):
                studies[page.parent.name] = read_model(Summary, page.with_name(SUMMARY), "report the study again")
        names = sorted(studies, key=lambda name: study.finished if (study := studies[name]) else "", reverse=True)
        overview = TEMPLATES.get_template("overview.html").render(studies={name: studies[name] for name in names})
        write_text(folder.parent / "index.html", printable(overview))


TEMPLATES.globals |= {
    "marks": {verdict: mark for verdict, mark in MARKS.items() if verdict is not None},
    "numeric_columns": numeric_columns,
    "marked_columns": lambda table: [any(cell.verdict for cell in column) for column in zip(*table.rows, strict=True)],
    "sort_key": sort_key,
    "value_text": value_text,
}
