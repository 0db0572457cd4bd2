"""Score against trainable parameters."""

import statistics
from collections.abc import Iterator
from typing import Any

import pandas as pd
from matplotlib.ticker import LogLocator, NullFormatter

from pipeline.records.studies import Line
from pipeline.reporting.figures.drawing import Drawing, legend_below, look_of, panels, short_number
from pipeline.reporting.report import Figure
from pipeline.reporting.runs import StudyRuns
from pipeline.reporting.text import MOST_NAMED


def pareto(runs: StudyRuns) -> Iterator[Drawing]:
    """A panel for the mean over all targets and, of few, one for each; a step line joins what nothing cheaper beats."""
    table = _numbers(runs)
    if table.empty:
        return
    scopes = list(dict.fromkeys(table["target"]))
    if len(runs.study.targets) > MOST_NAMED:
        scopes = scopes[:1]  # the targets one by one are in the CSV
    canvas, axes = panels(len(scopes), height=3.4 if len(scopes) == 1 else 2.5, width=5.4 if len(scopes) == 1 else 2.7)
    for axis, scope in zip(axes, scopes, strict=True):
        own = table[table["target"] == scope]
        for point in own.itertuples():
            axis.errorbar(
                # A model with nothing to train has no place on a logarithmic axis; 1 is its left end.
                max(point.trainable_parameters, 1),
                point.score,
                yerr=point.deviation or None,
                **look_of(point.method.row, runs.rows) | {"linestyle": "none"},
                label=runs.study.title(point.method.row),
            )
        front = own[own["front"]].sort_values("trainable_parameters")
        steps = front["trainable_parameters"].clip(lower=1)
        axis.plot(steps, front["score"], drawstyle="steps-post", color="#888888", linewidth=1, zorder=0)
        axis.set_xscale("log")
        axis.xaxis.set_major_locator(LogLocator(numticks=5))
        axis.xaxis.set_major_formatter(short_number)
        axis.xaxis.set_minor_formatter(NullFormatter())
        axis.set(title=scope, xlabel="trainable parameters", ylabel="score")
        axis.grid(alpha=0.3)
    legend_below(canvas, axes)
    joint = runs.titles(Line(name) for name in runs.rows if runs.study.row(name).kind.is_joint)
    yield Drawing(Figure.of("pareto", joint=joint), canvas, table)


def _numbers(runs: StudyRuns) -> pd.DataFrame:
    points = []
    for line in runs.lines:
        own: list[tuple[Line, str, float, float, float]] = []
        for target, group in runs.groups(line).items():
            values = [scored.value for scored in group]
            deviation = statistics.stdev(values) if len(values) > 1 else 0.0
            trained = statistics.mean(scored.record.cost.trainable_parameters for scored in group)
            own.append((line, target, trained, statistics.mean(values), deviation))
        if len(own) == len(runs.study.targets) > 1:
            trained = statistics.mean(point[2] for point in own)
            points.append((line, "mean", trained, statistics.mean(point[3] for point in own), 0.0))
        points += own
    table = pd.DataFrame(points, columns=["method", "target", "trainable_parameters", "score", "deviation"])
    table["front"] = [not _beaten(point, table) for point in table.itertuples()]
    order = ["mean", *runs.study.targets]
    return table.sort_values("target", key=lambda column: column.map(order.index), kind="stable", ignore_index=True)


def _beaten(point: Any, table: pd.DataFrame) -> bool:
    """Whether something trains no more and scores higher, or trains less and scores the same."""
    others = table[table["target"] == point.target]
    saved, gained = point.trainable_parameters - others["trainable_parameters"], others["score"] - point.score
    return bool((((saved >= 0) & (gained > 0)) | ((saved > 0) & (gained == 0))).any())
