"""From task to task: forgetting, and what is built on other tasks."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import mean
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from pipeline.reporting.built_on import TITLE, Contrast, contrasts
from pipeline.reporting.figures.drawing import DIVERGING_MAP, Drawing, heat_map, panels
from pipeline.reporting.forgetting import changes
from pipeline.reporting.report import Figure
from pipeline.reporting.runs import StudyRuns
from pipeline.reporting.tables import MARKS
from pipeline.reporting.text import points

Row = TypeVar("Row")


def forgetting_map(runs: StudyRuns) -> Iterator[Drawing]:
    """A panel a row of the study: what the task learned first lost by training on the second."""
    all_changes = changes(runs)
    if not all_changes:
        return
    names = list(dict.fromkeys(change.row for change in all_changes))
    sources = [task for task in runs.study.all_tasks if any(change.source == task for change in all_changes)]
    targets = [task for task in runs.study.targets if any(change.target == task for change in all_changes)]
    limit = max(0.01, *(abs(change.difference) for change in all_changes))
    canvas, axes = panels(len(names), height=0.9 + 0.42 * len(sources))
    image: Any = None
    for axis, name in zip(axes, names, strict=True):
        differences = {(c.source, c.target): c.difference for c in all_changes if c.row == name}
        values = _matrix(differences, sources, targets)
        image = _difference_map(axis, values, sources, targets, _texts(values), limit)
        axis.set(title=runs.study.title(name), xlabel="then trained on", ylabel="learned first")
    canvas.colorbar(image, ax=axes, label="change, points", shrink=0.8)
    table = pd.DataFrame(
        [(c.row, c.source, c.target, mean(c.before), mean(c.after), c.difference, c.proof) for c in all_changes],
        columns=["method", "first", "then", "before", "after", "change", "unchanged"],
    )
    caption = (
        "Change of the score on the task learned first, in points, after training on the second, with the first task's"
        " own head; negative is forgetting. For adapters and fusion it is 0 because nothing that answers the first task"
        " was changed, as hashes show."
    )
    yield Drawing(Figure("forgetting", "Forgetting", caption), canvas, table)


def contrast_map(runs: StudyRuns) -> Iterator[Drawing]:
    """One matrix: what is built on another row, by target; sequential tuning a line a source."""
    all_contrasts = contrasts(runs)
    if not all_contrasts:
        return
    lines = list(dict.fromkeys(one.line for one in all_contrasts))
    targets = [task for task in runs.study.targets if any(one.target == task for one in all_contrasts)]
    differences = {(one.line, one.target): one.comparison.difference for one in all_contrasts}
    values = _matrix(differences, lines, targets)
    limit = max(0.01, float(np.nanmax(np.abs(values))))
    texts = _texts(values)
    for one in all_contrasts:
        mark = f" {MARKS[one.comparison.verdict]}" if one.comparison.significant else ""
        texts[lines.index(one.line)][targets.index(one.target)] += mark
    canvas, (axis,) = panels(1, height=1.1 + 0.34 * len(lines), width=2.8 + 0.8 * len(targets))
    image = _difference_map(axis, values, [runs.title(line) for line in lines], targets, texts, limit)
    axis.set_xlabel("target")
    canvas.colorbar(image, ax=axis, label="difference, points")
    columns = ["method", "against", "sources", "target", "difference", "low", "high", "p_value", "verdict"]
    table = pd.DataFrame([_numbers(one) for one in all_contrasts], columns=columns)
    caption = (
        "Difference in points: sequential and joint training from fine-tuning on the target alone, what is built on"
        " adapters from the row of adapters. The two sides may have trained for different numbers of steps, as the"
        " table of this name says, so this does not show what other tasks are worth. ↑ better and ↓ worse by its tests."
    )
    yield Drawing(Figure("built-on", TITLE, caption), canvas, table)


def _numbers(one: Contrast) -> tuple[object, ...]:
    c = one.comparison
    return one.line, one.base, one.sources, one.target, c.difference, *c.interval, c.p_value, c.verdict


def _difference_map(
    axis: Axes, values: np.ndarray, rows: Sequence[str], columns: Sequence[str], texts: list[list[str]], limit: float
) -> Any:
    """Differences in points, coloured by sign up to ``limit``."""
    bound = 100 * limit
    return heat_map(axis, 100 * values, rows, columns, texts, cmap=DIVERGING_MAP, vmin=-bound, vmax=bound)


def _matrix(differences: Mapping[tuple[Row, str], float], rows: Sequence[Row], columns: Sequence[str]) -> np.ndarray:
    return np.array([[differences.get((row, column), np.nan) for column in columns] for row in rows])


def _texts(values: np.ndarray) -> list[list[str]]:
    return [["" if np.isnan(value) else points(float(value)) for value in row] for row in values]
