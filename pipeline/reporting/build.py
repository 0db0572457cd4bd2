"""From a study's runs to its report: every table, figure and sentence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from pipeline.records.ledger import Ledger, RunRecord
from pipeline.reporting.built_on import built_on_table, contrasts
from pipeline.reporting.choices import choices_table
from pipeline.reporting.cost import cost_table
from pipeline.reporting.cross_task import cross_task_table
from pipeline.reporting.entries import StudyResult
from pipeline.reporting.epochs import epoch_scores, epoch_table
from pipeline.reporting.figures import Findings, write_figures
from pipeline.reporting.figures.attention_maps import AttentionMap
from pipeline.reporting.forgetting import changes, forgetting_table
from pipeline.reporting.fusion_gain import fusion_gain_table, fusion_gains
from pipeline.reporting.low_resource import LowResource, low_resource_table
from pipeline.reporting.main_table import main_table, main_verdicts
from pipeline.reporting.notes import notes
from pipeline.reporting.published import published_tables
from pipeline.reporting.report import Report, Table
from pipeline.reporting.results import results_table
from pipeline.reporting.runs import StudyRuns
from pipeline.reporting.sentences import (
    failure_sentences,
    forgetting_sentences,
    fusion_sentences,
    low_resource_sentences,
    main_sentences,
)
from pipeline.reporting.settings import settings_table
from pipeline.reporting.text import backbone_text


def build_report(result: StudyResult, ledger: Ledger, folder: Path, maps: Sequence[AttentionMap] = ()) -> Report:
    """Everything that is told of a study; its figures are written into ``folder/figures``, with ``maps`` among them.

    Raises:
        PipelineError: a run is no longer in the ledger, or was scored on other rows than its partners.
    """
    runs = StudyRuns(result, ledger)
    verdicts, curve = main_verdicts(runs), LowResource(runs)
    curve_verdicts = curve.verdicts()
    findings = Findings(epoch_scores(runs), curve, changes(runs), contrasts(runs), maps)
    gains = fusion_gains(runs)
    tables = (
        main_table(runs, verdicts),
        choices_table(runs),
        cost_table(runs),
        low_resource_table(curve, curve_verdicts) if curve else None,
        fusion_gain_table(runs, gains),
        built_on_table(runs, findings.contrasts),
        forgetting_table(runs, list(findings.changes)),
        cross_task_table(runs),
        *published_tables(runs),
        settings_table(runs),
        epoch_table(runs, findings.epochs),
    )
    shown = tuple(table for table in tables if table is not None)
    records = {record.run: record for record in _records(runs, shown)}
    return Report(
        study=result.study,
        backbone=backbone_text(result.backbone),
        summary=(
            *main_sentences(runs, verdicts),
            *low_resource_sentences(curve, curve_verdicts),
            *fusion_sentences(runs, gains),
            *forgetting_sentences(runs, findings.changes),
            *failure_sentences(runs),
        ),
        tables=shown,
        figures=write_figures(runs, findings, folder / "figures"),
        notes=tuple(notes(runs)),
        results=results_table(runs),
        records=records,
        curves={run: ledger.curve(run) for run in records},
    )


def _records(runs: StudyRuns, tables: tuple[Table, ...]) -> Iterator[RunRecord]:
    """The study's runs, and those that cells name beside them: adapters of sources, first steps."""
    yield from (scored.record for scored in runs.scored)
    for name in dict.fromkeys(run for table in tables for row in table.rows for cell in row for run in cell.runs):
        record = runs.ledger.find(name)
        if record is not None:
            yield record
