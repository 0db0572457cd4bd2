"""Dev scores epoch by epoch."""

from __future__ import annotations

import pandas as pd

from pipeline.reporting.report import Cell, Table
from pipeline.reporting.runs import Scored, StudyRuns, runs_of
from pipeline.reporting.text import MISSING, number

MOST_COLUMNS = 20
"""A table with more epochs than these shows evenly spaced ones; the figure and its CSV have all."""


def epoch_scores(runs: StudyRuns) -> pd.DataFrame:
    """``method``, ``target``, ``seed``, ``epoch``, ``dev``: every score of every run of the main table."""
    parts = [
        _curve(scored, runs) for label in runs.labels for t in runs.study.targets for scored in runs.cell(label, t)
    ]
    columns = ["method", "target", "seed", "epoch", "dev"]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=columns)


def epoch_table(runs: StudyRuns, scores: pd.DataFrame) -> Table | None:
    """One line a line of the main table and target, means over seeds; None without any run."""
    if scores.empty:
        return None
    means = scores.groupby(["method", "target", "epoch"])["dev"].mean()
    epochs = sorted(scores["epoch"].unique())
    step = -(-len(epochs) // MOST_COLUMNS)
    shown = [epoch for epoch in epochs if epoch % step == 0 or epoch == epochs[-1]]
    rows = []
    for label in runs.labels:
        for target in runs.study.targets:
            group = runs.cell(label, target)
            if not group:
                continue
            values = [means.get((label, target, epoch)) for epoch in shown]
            cells = [Cell(number(value) if value is not None else MISSING, value) for value in values]
            rows.append((Cell(runs.title(label), label), Cell(target, target, runs_of(group)), *cells))
    notes = ("Means over seeds. Epoch 0, where there is one, is the score before any training step.",)
    columns = ("method", "task", *(f"epoch {epoch}" for epoch in shown))
    return Table("epochs", "Dev score by epoch", columns, tuple(rows), notes)


def _curve(scored: Scored, runs: StudyRuns) -> pd.DataFrame:
    curve = runs.curve(scored.record.run)
    # The mean over its tasks is what a model of several is selected by; each task has a column of its own.
    own = f"dev_{scored.entry.target}"
    return pd.DataFrame(
        {
            "method": scored.entry.method,
            "target": scored.entry.target,
            "seed": scored.entry.seed,
            "epoch": curve["epoch"].astype(int),
            "dev": curve[own if own in curve else "dev"],
        }
    )
