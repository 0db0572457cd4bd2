"""Published reports beside studies that reproduce them; the rest of the product reads only this front.

``values.csv`` has their tables, ``settings.csv`` how each row was trained, ``absent.csv`` what no study reproduces, and
``reports.toml`` the data and columns of each report.
"""

from pipeline.reporting.published.settings import differences_table, setting_table, unstated_table
from pipeline.reporting.published.tables import epochs_table, value_tables
from pipeline.reporting.published.values import published_mistakes
from pipeline.reporting.report import Table
from pipeline.reporting.runs import StudyRuns

__all__ = ["published_mistakes", "published_tables"]


def published_tables(runs: StudyRuns) -> list[Table]:
    """What a study shows of the report that it names; nothing where it names none."""
    source = runs.study.published
    if source is None:
        return []
    others = (make(runs, source) for make in (epochs_table, differences_table, unstated_table, setting_table))
    return [*value_tables(runs, source), *(table for table in others if table is not None)]
