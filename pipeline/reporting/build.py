"""From a study's runs to its report: every table, figure and sentence, and their files."""

import base64
import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

from pipeline.data.tables import write_table
from pipeline.records.ledger import Ledger
from pipeline.records.run_record import Cost
from pipeline.records.studies import StudyResult
from pipeline.reporting import advice, effort, notes, opponents, scores, transfer
from pipeline.reporting.figures import models as model_figures
from pipeline.reporting.figures import scores as score_figures
from pipeline.reporting.figures.drawing import Drawing, drawing_style, write
from pipeline.reporting.published import tables as published
from pipeline.reporting.report import MARKS, Cell, Figure, Report, Table
from pipeline.reporting.runs import AttentionMap, StudyRuns, runs_of
from pipeline.system.atomic import new_folder, write_text
from pipeline.system.errors import printable
from pipeline.system.reading import backbone_text

TABLES: tuple[Callable[[StudyRuns], Table | Sequence[Table] | None], ...] = (
    scores.main_table,
    effort.choices_table,
    opponents.opponents_table,
    effort.cost_table,
    scores.low_resource_table,
    transfer.fusion_gain_table,
    transfer.built_on_table,
    transfer.forgetting_table,
    transfer.cross_task_table,
    published.published_tables,
    effort.settings_table,
    scores.epoch_table,
)
"""In the order of the report. A function returns None, or no table, if the study has nothing to show there."""

_SCORED = {"main", "opponents", "low-resource", "fusion-gain", "built-on", "forgetting", "cross-task", "published"}
"""Tables of test scores; they state which rows are the test rows, as each of several published tables does."""

FIGURES: tuple[Callable[[StudyRuns], Iterator[Drawing]], ...] = (
    score_figures.forest,
    score_figures.pareto,
    score_figures.low_resource_curves,
    score_figures.contrast_map,
    score_figures.forgetting_map,
    score_figures.learning_curves,
    model_figures.attention_maps,
    model_figures.confusions,
    model_figures.scatters,
    model_figures.fusion_attention,
)
"""In the order of the report; one yields nothing where the study has no numbers for it."""

VERDICT = (opponents.opponents_sentences, scores.main_verdict)
"""Functions that yield at most one sentence."""

SENTENCES = (
    scores.main_sentences,
    scores.low_resource_sentences,
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
        advice=tuple(advice.advice_sentences(runs)),
        cautions=tuple(advice.cautions(runs)),
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
    figures = []
    with drawing_style(), new_folder(folder) as fresh:
        for drawing in (drawing for draw in FIGURES for drawing in draw(runs)):
            write(drawing, fresh)
            figures.append(drawing.figure)
    return tuple(figures)


TABLES_FILE = "tables.md"
"""File with all tables of a report, for people to read."""

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


def write_tables(report: Report, folder: Path) -> None:
    """Write the results in tidy form, and every table as Markdown, LaTeX (booktabs) and CSV."""
    write_table(report.results, folder / "results.csv")
    for name in (TABLES_FILE, "tables.tex"):
        write_text(folder / name, printable(TEMPLATES.get_template(name).render(report=report)))
    with new_folder(folder / "tables") as fresh:
        for table in report.tables:
            write_table(plain_table(table), fresh / f"{table.name}.csv")


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
            "stored_parameters": pd.array([effort.stored([scored.record], runs.ledger) for scored in group], "Int64"),
            "total_seconds": [scored.entry.total_seconds for scored in group],
            "trials": [runs.study.trials_on_target(scored.entry.line.row) for scored in group],
            "precision": [scored.record.recipe.precision for scored in group],
            "hardware": [scored.record.hardware for scored in group],
        }
    )


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
    "sha256": lambda text: base64.b64encode(hashlib.sha256(text.encode()).digest()).decode(),
}
