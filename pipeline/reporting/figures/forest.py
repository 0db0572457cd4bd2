"""Differences with their intervals: the leading fusion against its opponents, the rows against the reference."""

from collections.abc import Iterator, Mapping
from textwrap import fill

import pandas as pd
from matplotlib.axes import Axes

from pipeline.reporting.duels import leading_duels, leading_fusion
from pipeline.reporting.figures.drawing import Drawing, label_width, panels
from pipeline.reporting.main_table import main_comparisons, which_compared
from pipeline.reporting.report import Figure
from pipeline.reporting.runs import StudyRuns
from pipeline.reporting.tables import MARKS
from pipeline.reporting.text import capital, points, where_text
from pipeline.stats.paired import Comparison

_TITLE_WIDTH = 38
"""Characters that fit above a panel."""
_COLOURS = {"better": "#009E73", "worse": "#D55E00", "not significant": "#888888"}


def forest(runs: StudyRuns) -> Iterator[Drawing]:
    """Two panels on one scale, on the mean of the targets; nothing in a study without any comparison."""
    leading, against = leading_fusion(runs), runs.title(runs.reference)
    which = which_compared(runs)
    rows = f"rows {which}, compared with {against}" if which else f"every row compared with {against}"
    groups = {rows: {runs.title(x): comparison for x, comparison in main_comparisons(runs).items()}}
    if leading is not None:
        groups = {f"{runs.title(leading)} against": leading_duels(runs), **groups}
    groups = {title: own for title, own in groups.items() if own}
    if not groups:
        return
    sizes = [len(own) + 1.2 for own in groups.values()]
    names = [name for own in groups.values() for name in own]
    canvas, axes = panels(
        len(groups), columns=1, height=0.5 / len(groups) + 0.23 * sum(sizes) / len(groups),
        width=2.6 + label_width(names), sharex=True, height_ratios=sizes,
    )  # fmt: skip
    for axis, (title, own) in zip(axes, groups.items(), strict=True):
        _draw(axis, own)
        axis.set_title(fill(capital(title), _TITLE_WIDTH), loc="left")
    # Beside the rows' names there is room for a long label, beyond the right end there is none.
    axes[-1].set_xlabel(f"difference in points on {where_text(runs.study)}", loc="right")
    numbers = [
        (title, name, comparison.difference, *comparison.interval, comparison.p_value, comparison.verdict)
        for title, own in groups.items()
        for name, comparison in own.items()
    ]
    columns = ["group", "row", "difference", "low", "high", "p_value", "verdict"]
    yield Drawing(Figure.of("forest"), canvas, pd.DataFrame(numbers, columns=columns))


def _draw(axis: Axes, compared: Mapping[str, Comparison]) -> None:
    for place, comparison in enumerate(compared.values()):
        low, high = comparison.interval
        colour = _COLOURS[comparison.verdict]
        axis.plot([100 * low, 100 * high], [place, place], color=colour, linewidth=2, solid_capstyle="butt")
        axis.plot(
            [100 * comparison.difference], [place], "o", color=colour, markersize=6 if comparison.significant else 4
        )
        text = f"{points(comparison.difference)} {MARKS[comparison.verdict]}"
        axis.annotate(text, (1.01, place), xycoords=("axes fraction", "data"), va="center", fontsize="small")
    axis.axvline(0, color="#888888", linewidth=1)
    axis.set_yticks(range(len(compared)), list(compared))
    axis.set_ylim(len(compared) - 0.4, -0.6)
    axis.tick_params(axis="y", length=0)
    axis.spines["left"].set_visible(False)
    axis.grid(axis="x", alpha=0.3)
