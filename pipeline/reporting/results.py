"""results.csv: one row a finished cell of the study."""

import pandas as pd

from pipeline.records.ledger import Cost
from pipeline.reporting.cost import stored
from pipeline.reporting.runs import StudyRuns

RESULT_COLUMNS = [
    "method", "target", "seed", "split", "metric", "value", *Cost.model_fields, "run", "train_rows",
    "stored_parameters", "total_seconds",
]  # fmt: skip


def results_table(runs: StudyRuns) -> pd.DataFrame:
    """The main table's runs and then the curve's, which have fewer ``train_rows`` of the target.

    ``method`` holds the :class:`Line`, which a file shows as text.
    ``stored_parameters`` are those to keep to answer this target; ``total_seconds`` counts the runs it is built on.
    """
    ordered = sorted(runs.scored, key=lambda scored: scored.entry.rows is not None)
    rows = [
        {
            "method": scored.entry.line,
            "target": scored.entry.target,
            "seed": scored.entry.seed,
            "split": "dev",
            "metric": scored.score.metric,
            "value": scored.value,
            **scored.record.cost.model_dump(),
            "run": scored.record.run,
            "train_rows": scored.score.train_rows or None,
            "stored_parameters": stored([scored.record], runs.ledger),
            "total_seconds": scored.entry.total_seconds,
        }
        for scored in ordered
    ]
    table = pd.DataFrame(rows, columns=RESULT_COLUMNS)
    # Whole numbers stay whole beside empty fields.
    return table.astype({"train_rows": "Int64", "stored_parameters": "Int64"})
