"""Dev scores by epoch, and scores on training rows if requested."""

import numpy as np
import pandas as pd

from pipeline.reporting.cells import line_cell
from pipeline.reporting.report import Cell, Table
from pipeline.reporting.runs import StudyRuns, once, runs_of
from pipeline.reporting.text import number

MOST_COLUMNS = 20
"""The most epochs that the table shows: beyond it, evenly spaced ones and every line's last. The figure and its CSV
have all."""


@once
def epoch_scores(runs: StudyRuns) -> pd.DataFrame:
    """Every score of the main table's runs: ``method``, a :class:`Line`, ``target``, ``seed``, ``epoch``, ``loss``,
    ``dev``, ``train``; the last is NaN where training rows were not scored.

    A model that learned tasks in turn has scores for the last task alone, because its curve covers only that task.
    """
    parts = []
    for line, target, group in runs.cells():
        for scored in group:
            curve, dev = runs.curve(scored.record.run), runs.dev_curve(scored)
            if dev is None:
                continue
            scores = {
                "epoch": curve["epoch"].astype(int),
                "loss": curve.get("loss", np.nan),
                "dev": dev,
                "train": curve.get(f"train_{target}", np.nan),
            }
            parts.append(pd.DataFrame({"method": line, "target": target, "seed": scored.entry.seed, **scores}))
    columns = ["method", "target", "seed", "epoch", "loss", "dev", "train"]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=columns)


def epoch_table(runs: StudyRuns) -> Table | None:
    """Means over seeds: one line per main-table line and target, and another if training rows were scored.

    None without runs.
    """
    scores = epoch_scores(runs)
    if scores.empty:
        return None
    means = scores.groupby(["method", "target", "epoch"])[["dev", "train"]].mean()
    trained = scores["train"].notna().any()
    epochs = sorted(scores["epoch"].unique())
    last = scores.groupby(["method", "target"])["epoch"].max()
    shown = sorted({*epochs[:: -(-len(epochs) // MOST_COLUMNS)], *last})
    rows = []
    for line, target, group in runs.cells():
        for part in ("dev", "train") if trained else ("dev",):
            own = means[part].dropna()
            values = {f"epoch {epoch}": own.get((line, target, epoch)) for epoch in shown}
            if not any(value is not None for value in values.values()):
                continue
            cells = {name: Cell(number(value), value) for name, value in values.items()}
            where = {"rows": Cell(part)} if trained else {}
            task = Cell(target, target, runs_of(group))
            rows.append({"method": line_cell(runs, line), "task": task, **where, **cells})
    return Table.of("epochs", rows)
