"""From task to task: forgetting, and what is built on other tasks."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean
from typing import Any

import numpy as np
import pandas as pd

from pipeline.reporting.built_on import TITLE, Contrast
from pipeline.reporting.figures.drawing import DIVERGING_MAP, Drawing, heat_map, panels
from pipeline.reporting.forgetting import Change
from pipeline.reporting.report import Figure
from pipeline.reporting.runs import StudyRuns
from pipeline.reporting.tables import MARKS
from pipeline.reporting.text import points


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


def contrast_map(runs: StudyRuns, found: Sequence[Contrast]) -> Drawing | None:
    """One matrix: what is built on another row, by target; sequential tuning a line a source."""
    if not found:
        return None
    labels = list(dict.fromkeys(one.row for one in found))
    targets = [task for task in runs.study.targets if any(one.target == task for one in found)]
    differences = {(one.row, one.target): one.comparison.difference for one in found}
    values = _matrix(differences, labels, targets)
    limit = max(0.01, float(np.nanmax(np.abs(values))))
    texts = _texts(values)
    for one in found:
        mark = f" {MARKS[one.comparison.verdict]}" if one.comparison.significant else ""
        texts[labels.index(one.row)][targets.index(one.target)] += mark
    canvas, (axis,) = panels(1, height=1.1 + 0.34 * len(labels), width=2.8 + 0.8 * len(targets))
    names = [runs.title(label) for label in labels]
    image = heat_map(axis, 100 * values, names, targets, texts, cmap=DIVERGING_MAP, vmin=-100 * limit, vmax=100 * limit)
    axis.set_xlabel("target")
    canvas.colorbar(image, ax=axis, label="difference, points")
    columns = ["method", "against", "sources", "target", "difference", "low", "high", "p_value", "verdict"]
    table = pd.DataFrame([_numbers(one) for one in found], columns=columns)
    caption = (
        "Difference in points: sequential and joint training from fine-tuning on the target alone, what is built on"
        " adapters from the row of adapters. The two sides may have trained for different numbers of steps, as the"
        " table of this name says, so this does not show what other tasks are worth. ↑ better and ↓ worse by its tests."
    )
    return Drawing(Figure("built-on", TITLE, caption), canvas, table)


def _numbers(one: Contrast) -> tuple[object, ...]:
    found = one.comparison
    return one.row, one.base, one.sources, one.target, found.difference, *found.interval, found.p_value, found.verdict


def _matrix(found: dict[tuple[str, str], float], rows: Sequence[str], columns: Sequence[str]) -> np.ndarray:
    return np.array([[found.get((row, column), np.nan) for column in columns] for row in rows])


def _texts(values: np.ndarray) -> list[list[str]]:
    return [["" if np.isnan(value) else points(float(value)) for value in row] for row in values]
