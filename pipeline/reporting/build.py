"""From a study's runs to its report: every table, figure and sentence; and the report's files.

``index.html`` loads nothing and runs only its own script; the one above it has all studies of a folder.
"""

import base64
import hashlib
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
from pydantic import BaseModel

from pipeline.data.tables import write_table
from pipeline.records.ledger import Ledger
from pipeline.records.run_record import Cost, RunRecord
from pipeline.records.studies import Line, StudyResult
from pipeline.reporting import averaging, notes, opponents, rows, transfer
from pipeline.reporting.figures import Drawing, drawing_style, drawings, write
from pipeline.reporting.published import published_tables
from pipeline.reporting.report import MARKS, Cell, Figure, Report, Table, value_text
from pipeline.reporting.runs import AttentionMap, StudyRuns, runs_of
from pipeline.settings.kinds import KINDS
from pipeline.system.atomic import locked, new_folder, write_json, write_text
from pipeline.system.errors import PipelineError, printable
from pipeline.system.reading import backbone_text, read_model

TABLES: tuple[Callable[[StudyRuns], Table | Sequence[Table] | None], ...] = (
    rows.main_table,
    rows.choices_table,
    opponents.opponents_table,
    averaging.averaging_table,
    rows.cost_table,
    rows.low_resource_table,
    transfer.fusion_gain_table,
    transfer.built_on_table,
    transfer.forgetting_table,
    transfer.cross_task_table,
    published_tables,
    rows.settings_table,
    rows.epoch_table,
)
"""In the order of the report. A function returns None, or no table, if the study has nothing to show there."""

_SCORED = {
    "main", "opponents", "averaging", "low-resource", "fusion-gain", "built-on", "forgetting", "cross-task", "published"
}  # fmt: skip
"""Tables of test scores; they state which rows are the test rows, as each of several published tables does."""

FIGURES: tuple[Callable[[StudyRuns], Iterator[Drawing]], ...] = (
    drawings.forest,
    drawings.pareto,
    drawings.low_resource_curves,
    drawings.contrast_map,
    drawings.forgetting_map,
    drawings.learning_curves,
    drawings.attention_maps,
    drawings.confusions,
    drawings.scatters,
    drawings.fusion_attention,
)
"""In the order of the report; one yields nothing where the study has no numbers for it."""

VERDICT = (opponents.opponents_sentences, rows.main_verdict)
"""Functions that yield at most one sentence."""

SENTENCES = (
    rows.main_sentences,
    averaging.averaging_sentences,
    rows.low_resource_sentences,
    transfer.fusion_sentences,
    transfer.forgetting_sentences,
    notes.failure_sentences,
)


def build_report(result: StudyResult, ledger: Ledger, folder: Path, maps: Sequence[AttentionMap] = ()) -> Report:
    """Compute the report of a study, and write its figures, including ``maps``, into ``folder/figures``.

    Raises:
        PipelineError: a run is missing from the ledger, or was scored on different rows than its partners.
    """
    runs = StudyRuns(result, ledger, maps)
    tables: list[Table] = []
    for made in (make(runs) for make in TABLES):
        for table in [made] if isinstance(made, Table) else made or []:
            is_scored = table.name in _SCORED or table.name.startswith("published-table-")
            tables.append(replace(table, notes=(notes.scoring_text(runs), *table.notes)) if is_scored else table)
    # Cells also name runs outside the study's rows: source adapters and first steps.
    named = (run for table in tables for row in table.rows for cell in row for run in cell.runs)
    read = ((run, ledger.find(run)) for run in dict.fromkeys((*runs_of(runs.scored), *named)))
    records = {run: record for run, record in read if record is not None}
    return Report(
        study=result.study,
        backbone=backbone_text(result.backbone),
        advice=tuple(notes.advice_sentences(runs)),
        cautions=tuple(notes.cautions(runs)),
        verdict=tuple(sentence for say in VERDICT for sentence in say(runs)),
        summary=tuple(sentence for say in SENTENCES for sentence in say(runs)),
        tables=tuple(tables),
        figures=write_figures(runs, folder / "figures"),
        notes=tuple(notes.notes(runs)),
        missing=tuple(notes.missing(runs)),
        results=results_table(runs),
        records=records,
        curves={run: runs.curve(run) for run in records},
    )


def write_figures(runs: StudyRuns, folder: Path) -> tuple[Figure, ...]:
    """Draw every figure that there are numbers for; the folder holds these and no others."""
    with drawing_style(), new_folder(folder) as fresh:
        return tuple(write(drawing, fresh) for draw in FIGURES for drawing in draw(runs))


def results_table(runs: StudyRuns) -> pd.DataFrame:
    """A row per finished cell: first the main table's runs, then the curve's, with fewer ``train_rows`` of the target.

    ``method`` holds the :class:`Line`. ``stored_parameters`` counts what must be kept to answer this target.
    ``seconds`` includes the row's trials with this seed, and ``total_seconds`` also the runs that it builds on.
    ``trials`` is the number of runs on the target that the row is chosen from, with the trials of rows that it takes.
    """
    group = sorted(runs.scored, key=lambda scored: scored.entry.rows is not None)
    return pd.DataFrame(
        {
            "method": [scored.entry.line for scored in group],
            "target": [scored.entry.target for scored in group],
            "seed": [scored.entry.seed for scored in group],
            "split": ["dev" if scored.score.test is None else "test" for scored in group],
            "metric": [scored.score.metric for scored in group],
            "value": [scored.value for scored in group],
            **{name: [getattr(scored.record.cost, name) for scored in group] for name in Cost.model_fields},
            "seconds": [scored.seconds for scored in group],
            "run": [scored.record.run for scored in group],
            # Int64 keeps whole numbers whole next to empty fields.
            "train_rows": pd.array([runs.train_rows(scored) or None for scored in group], "Int64"),
            "stored_parameters": pd.array([rows.stored([scored.record], runs.ledger) for scored in group], "Int64"),
            "total_seconds": [scored.entry.total_seconds for scored in group],
            "trials": [runs.study.trials_on_target(scored.entry.line.row) for scored in group],
            "precision": [scored.record.recipe.precision for scored in group],
            "hardware": [scored.record.hardware for scored in group],
        }
    )


TABLES_FILE = "tables.md"
"""File with all tables of a report, for people to read."""


def write_tables(report: Report, folder: Path) -> None:
    """Write the results in tidy form, and every table as Markdown, LaTeX (booktabs) and CSV."""
    write_table(report.results, folder / "results.csv")
    for name in (TABLES_FILE, "tables.tex"):
        write_text(folder / name, printable(TEMPLATES.get_template(name).render(report=report)))
    with new_folder(folder / "tables") as fresh:
        for table in report.tables:
            write_table(plain_table(table), fresh / f"{table.name}.csv")


def plain_table(table: Table) -> pd.DataFrame:
    """The cells as text; a column with verdicts is followed by one with the verdicts in words and their small print."""
    names, columns = list[str](), list[list[str]]()  # no dictionary, because column names may repeat
    for index, name in enumerate(table.columns):
        cells = [row[index] for row in table.rows]
        names.append(name)
        columns.append([cell.text for cell in cells])
        if any(cell.verdict for cell in cells):
            names += f"{name}, verdict", f"{name}, test"
            columns += [cell.verdict or "" for cell in cells], [cell.detail for cell in cells]
    return pd.DataFrame(columns).T.set_axis(names, axis="columns")


_TEX_SIGNS = {"±": r"$\pm$", "↑": r"$\uparrow$", "↓": r"$\downarrow$", "→": r"$\rightarrow$", "−": "$-$"}
_TEX_WORDS = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_TEX = str.maketrans({character: f"\\{character}" for character in "&%$#_{}"} | _TEX_WORDS | _TEX_SIGNS)


def marked(cell: Cell) -> str:
    """The cell's text with its verdict's arrow."""
    return f"{cell.text} {MARKS[cell.verdict]}".strip()


def _flat(shown: Cell | str) -> str:
    """A cell or text on one line: a line break would end the table row or start something else."""
    return " ".join((shown if isinstance(shown, str) else marked(shown)).split())


def _in_markdown(shown: Cell | str) -> str:
    text = _flat(shown).replace("|", r"\|")
    return f"**{text}**" if isinstance(shown, Cell) and shown.best else text


def _in_latex(shown: Cell | str) -> str:
    text = _flat(shown).translate(_TEX)
    return rf"\textbf{{{text}}}" if isinstance(shown, Cell) and shown.best else text


_MOST_NUMBERS = 64 * 1024
"""Largest CSV, in bytes, that the page embeds."""
_EMPTY = {"", "-", "–", "—"}


Pairs = list[tuple[str, str]]
_SHARED = ("Rows", "Made with", "Recipe", "Identity")
_PLANNED = ["learning_rate", "examples"]


def write_page(report: Report, folder: Path) -> None:
    """Write ``folder/index.html`` with the figures from ``folder/figures``.

    All text is escaped. In addition, a content security policy allows only the hashes of the page's script and style,
    so the browser runs nothing else and loads nothing from anywhere.
    """
    labels = defaultdict[str, dict[str, None]](dict)  # the study rows in which every run appears
    for run, line in zip(report.results["run"], report.results["method"], strict=True):
        labels[run][report.study.title(line.row, line.source)] = None
    views = [
        run_view(record, report.curves[run], "; ".join(labels[run]) or record.kind)
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


def run_view(record: RunRecord, curve: pd.DataFrame, method: str) -> dict[str, Any]:
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
    scores = curve[["epoch", "dev"]].dropna().astype(float)
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
        "curve": curve.drop(columns=_PLANNED, errors="ignore"),
        "scores": [*scores.itertuples(index=False, name=None)] if len(scores) > 1 else [],
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


def _picture(figure: Figure, folder: Path) -> dict[str, Any]:
    """A figure with its image and numbers as data URLs.

    An image in a data URL cannot run scripts or load anything, whatever text it contains.
    """
    svg, numbers = ((folder / f"{figure.name}.{suffix}").read_bytes() for suffix in ("svg", "csv"))
    box = re.search(rb'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)
    return {
        "figure": figure,
        "image": f"data:image/svg+xml;base64,{_base64(svg)}",
        # The size keeps the layout still while the page loads. Matplotlib has 72 points per inch, CSS 96 pixels.
        "size": [round(float(length) * 4 / 3) for length in box.groups()] if box else None,
        "numbers": f"data:text/csv;base64,{_base64(numbers)}" if len(numbers) <= _MOST_NUMBERS else None,
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


SUMMARY = "summary.json"


class Summary(BaseModel, frozen=True):
    """A study's entry in the overview, stored as ``summary.json`` beside its page."""

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


TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).with_name("templates")),
    autoescape=select_autoescape(["html"]),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
TEMPLATES.filters |= {
    "markdown": _in_markdown,
    "latex": _in_latex,
    "flat": _flat,
    "sha256": lambda text: _base64(hashlib.sha256(text.encode()).digest()),
}
TEMPLATES.globals |= {
    "marks": {verdict: mark for verdict, mark in MARKS.items() if verdict is not None},
    "numeric_columns": numeric_columns,
    "marked_columns": lambda table: [any(cell.verdict for cell in column) for column in zip(*table.rows, strict=True)],
    "sort_key": sort_key,
    "value_text": value_text,
}
