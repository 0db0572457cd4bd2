"""From task to task: forgetting, and what is built on other tasks."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import mean
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from pipeline.reporting.built_on import contrasts
from pipeline.reporting.figures.drawing import DIVERGING_MAP, Drawing, heat_map, label_width, panels
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
    sources = {task: task for task in runs.study.all_tasks if any(change.source == task for change in all_changes)}
    targets = [task for task in runs.study.targets if any(change.target == task for change in all_changes)]
    limit = max(0.01, *(abs(change.difference) for change in all_changes))
    canvas, axes = panels(len(names), height=1.1 + 0.34 * len(sources), width=1.4 + 0.75 * len(targets))
    for axis, name in zip(axes, names, strict=True):
        differences = {(c.source, c.target): c.difference for c in all_changes if c.row == name}
        image = _difference_map(axis, sources, targets, differences, limit)
        axis.set(title=runs.study.title(name), xlabel="then trained on", ylabel="learned first")
    canvas.colorbar(image, ax=axes, label="change, points", shrink=0.8)
    table = pd.DataFrame(
        [(c.row, c.source, c.target, mean(c.before), mean(c.after), c.difference) for c in all_changes],
        columns=["method", "first", "then", "before", "after", "change"],
    )
    yield Drawing(Figure.of("forgetting"), canvas, table)


def contrast_map(runs: StudyRuns) -> Iterator[Drawing]:
    """One matrix: what is built on another row, by target; sequential fine-tuning a line a source."""
    all_contrasts = contrasts(runs)
    if not all_contrasts:
        return
    compared = {(contrast.line, contrast.target): contrast.comparison for contrast in all_contrasts}
    lines = {line: runs.title(line) for line, _ in compared}
    targets = [task for task in runs.study.targets if any(target == task for _, target in compared)]
    differences = {place: comparison.difference for place, comparison in compared.items()}
    marks = {place: f" {MARKS[c.verdict]}" for place, c in compared.items() if c.significant}
    limit = max(0.01, *map(abs, differences.values()))
    canvas, (axis,) = panels(
        1, height=1.1 + 0.34 * len(lines), width=2.2 + label_width(lines.values()) + 0.8 * len(targets)
    )
    image = _difference_map(axis, lines, targets, differences, limit, marks)
    axis.set_xlabel("target")
    canvas.colorbar(image, ax=axis, label="difference, points")
    tests = [(c.difference, *c.interval, c.p_value, c.verdict) for c in compared.values()]
    both = zip(all_contrasts, tests, strict=True)
    numbers = [(contrast.line, contrast.base, contrast.sources, contrast.target, *test) for contrast, test in both]
    columns = ["method", "against", "sources", "target", "difference", "low", "high", "p_value", "verdict"]
    yield Drawing(Figure.of("built-on"), canvas, pd.DataFrame(numbers, columns=columns))


def _difference_map(
    axis: Axes,
    rows: Mapping[Row, str],
    columns: Sequence[str],
    differences: Mapping[tuple[Row, str], float],
    limit: float,
    marks: Mapping[tuple[Row, str], str] = {},
) -> Any:
    """Differences in points, coloured by sign up to ``limit``; ``rows`` have titles."""
    places = [[(row, column) for column in columns] for row in rows]
    values = np.array([[differences.get(place, np.nan) for place in line] for line in places])
    shown = {place: points(difference) + marks.get(place, "") for place, difference in differences.items()}
    texts = [[shown.get(place, "") for place in line] for line in places]
    how = {"cmap": DIVERGING_MAP, "vmin": -100 * limit, "vmax": 100 * limit}
    return heat_map(axis, 100 * values, list(rows.values()), columns, texts, **how)
