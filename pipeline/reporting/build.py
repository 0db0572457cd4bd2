"""From a study's runs to its report: every table, figure and sentence."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from pipeline.records.ledger import Ledger
from pipeline.records.studies import StudyResult
from pipeline.reporting.effort import choices_table, cost_table, settings_table
from pipeline.reporting.figures import write_figures
from pipeline.reporting.fusion_gain import fusion_gain_table, fusion_sentences
from pipeline.reporting.notes import failure_sentences, missing, notes, scoring_text
from pipeline.reporting.opponents import opponents_sentences, opponents_table
from pipeline.reporting.published.tables import published_tables
from pipeline.reporting.report import Report, Table
from pipeline.reporting.runs import AttentionMap, StudyRuns, runs_of
from pipeline.reporting.scores import (
    cost_sentences,
    epoch_table,
    low_resource_sentences,
    low_resource_table,
    main_sentences,
    main_table,
    main_verdict,
)
from pipeline.reporting.tables import results_table
from pipeline.reporting.transfer import built_on_table, cross_task_table, forgetting_sentences, forgetting_table
from pipeline.system.backbone_name import backbone_text

TABLES: tuple[Callable[[StudyRuns], Table | Sequence[Table] | None], ...] = (
    main_table,
    choices_table,
    opponents_table,
    cost_table,
    low_resource_table,
    fusion_gain_table,
    built_on_table,
    forgetting_table,
    cross_task_table,
    published_tables,
    settings_table,
    epoch_table,
)
"""In the order of the report. A function returns None, or no table, if the study has nothing to show there."""

_SCORED = {"main", "opponents", "low-resource", "fusion-gain", "built-on", "forgetting", "cross-task", "published"}
"""Tables of test scores; they state which rows are the test rows."""
_TABLE = "published-table-"
"""Name prefix of the published tables; their notes are the same."""

VERDICT = (opponents_sentences, main_verdict, cost_sentences)
"""Functions that yield at most one sentence."""

SENTENCES = (
    main_sentences,
    low_resource_sentences,
    fusion_sentences,
    forgetting_sentences,
    failure_sentences,
)


def build_report(result: StudyResult, ledger: Ledger, folder: Path, maps: Sequence[AttentionMap] = ()) -> Report:
    """Compute the report of a study, and write its figures, including ``maps``, into ``folder/figures``.

    Raises:
        PipelineError: a run is missing from the ledger, or was scored on different rows than its partners.
    """
    runs = StudyRuns(result, ledger, maps)
    made: list[Table] = []
    for make in TABLES:
        computed = make(runs)
        if isinstance(computed, Table):
            made.append(computed)
        elif computed is not None:
            made += computed
    scoring = scoring_text(runs)
    tables = tuple(
        replace(table, notes=(scoring, *table.notes))
        if table.name in _SCORED or table.name.startswith(_TABLE)
        else table
        for table in made
    )
    # Cells also name runs outside the study's rows: source adapters and first steps.
    named = (run for table in tables for row in table.rows for cell in row for run in cell.runs)
    read = ((run, ledger.find(run)) for run in dict.fromkeys((*runs_of(runs.scored), *named)))
    records = {run: record for run, record in read if record is not None}
    return Report(
        study=result.study,
        backbone=backbone_text(result.backbone),
        verdict=tuple(sentence for say in VERDICT for sentence in say(runs)),
        summary=tuple(sentence for say in SENTENCES for sentence in say(runs)),
        tables=tables,
        figures=write_figures(runs, folder / "figures"),
        notes=tuple(notes(runs)),
        missing=tuple(missing(runs)),
        results=results_table(runs),
        records=records,
        curves={run: runs.curve(run) for run in records},
    )
