"""From task to task: forgetting, and gain."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean
from typing import Any

import numpy as np
import pandas as pd

from pipeline.reporting.figures.drawing import DIVERGING_MAP, Drawing, heat_map, panels
from pipeline.reporting.forgetting import Change
from pipeline.reporting.report import Figure
from pipeline.reporting.runs import StudyRuns
from pipeline.reporting.text import points
from pipeline.reporting.transfer import Gain


def forgetting_map(runs: StudyRuns, changes: Sequence[Change]) -> Drawing | None:
    """A panel a row of the study: what the task learned first lost by training on the second."""
    if not changes:
        return None
    names = list(dict.fromkeys(change.row for change in changes))
    sources = [task for task in runs.study.all_tasks if any(change.source == task for change in changes)]
    targets = [task for task in runs.study.targets if any(change.target == task for change in changes)]
    limit = max(0.01, *(abs(change.difference) for change in changes))
    canvas, axes = panels(len(names), height=0.9 + 0.42 * len(sources))
    image: Any = None
    for axis, name in zip(axes, names, strict=True):
        found = {(c.source, c.target): c.difference for c in changes if c.row == name}
        values = _matrix(found, sources, targets)
        image = heat_map(axis, 100 * values, sources, targets, _texts(values), cmap=DIVERGING_MAP,
                         vmin=-100 * limit, vmax=100 * limit)  # fmt: skip
        axis.set_title(runs.title(name))
        axis.set_xlabel("then trained on")
        axis.set_ylabel("learned first")
    canvas.colorbar(image, ax=axes, label="change, points", shrink=0.8)
    table = pd.DataFrame(
        [(c.row, c.source, c.target, mean(c.before), mean(c.after), c.difference, c.proof) for c in changes],
        columns=["method", "first", "then", "before", "after", "change", "unchanged"],
    )
    caption = (
        "Change of the score on the task learned first, in points, after training on the second, with the first task's"
        " own head; negative is forgetting. For adapters and fusion it is 0 because nothing that answers the first task"
        " was changed, as hashes show."
    )
    return Drawing(Figure("forgetting", "Forgetting", caption), canvas, table)


def transfer_map(runs: StudyRuns, gains: Sequence[Gain]) -> Drawing | None:
    """One matrix: who helps, by target; sequential tuning a line a source, fusion and multitask one line each."""
    if not gains:
        return None
    labels = list(dict.fromkeys(gain.row for gain in gains))
    targets = [task for task in runs.study.targets if any(gain.target == task for gain in gains)]
    found = {(gain.row, gain.target): gain.comparison.difference for gain in gains}
    values = _matrix(found, labels, targets)
    limit = max(0.01, float(np.nanmax(np.abs(values))))
    texts = _texts(values)
    for gain in gains:
        mark = {"better": " ↑", "worse": " ↓", "no difference seen": ""}[gain.comparison.verdict()]
        texts[labels.index(gain.row)][targets.index(gain.target)] += mark
    canvas, (axis,) = panels(1, height=1.1 + 0.34 * len(labels), width=2.8 + 0.8 * len(targets))
    names = [runs.title(label) for label in labels]
    image = heat_map(axis, 100 * values, names, targets, texts, cmap=DIVERGING_MAP, vmin=-100 * limit, vmax=100 * limit)
    axis.set_xlabel("target")
    canvas.colorbar(image, ax=axis, label="gain, points")
    columns = ["method", "against", "sources", "target", "gain", "low", "high", "p_value", "verdict"]
    table = pd.DataFrame([_numbers(gain) for gain in gains], columns=columns)
    caption = (
        "Gain in points by what other tasks gave: sequential tuning from each source and multitask against full"
        " fine-tuning on the target alone, fusion against the target's own adapter. ↑ better and ↓ worse by the tests"
        " of the transfer table."
    )
    return Drawing(Figure("transfer", "Gain from other tasks", caption), canvas, table)


def _numbers(gain: Gain) -> tuple[object, ...]:
    found = gain.comparison
    interval = found.interval or (None, None)
    return gain.row, gain.base, gain.sources, gain.target, found.difference, *interval, found.p_value, found.verdict()


def _matrix(found: dict[tuple[str, str], float], rows: Sequence[str], columns: Sequence[str]) -> np.ndarray:
    return np.array([[found.get((row, column), np.nan) for column in columns] for row in rows])


def _texts(values: np.ndarray) -> list[list[str]]:
    return [["" if np.isnan(value) else points(float(value)) for value in row] for row in values]
