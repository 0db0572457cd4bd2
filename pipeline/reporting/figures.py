"""Figures of a study, as SVG and PNG."""

from __future__ import annotations

from pathlib import Path

import matplotlib
import pandas as pd

from pipeline.atomic import make_folder, new_file
from pipeline.reporting.entries import Summary
from pipeline.reporting.tables import method_text

matplotlib.use("agg")
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

# Okabe and Ito's palette: told apart under every common colour blindness.
_COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442"]


def write_figures(results: pd.DataFrame, summary: Summary, folder: Path) -> None:
    """Write ``scores``: every run as a dot, every mean as a bar, a panel a target."""
    make_folder(folder)
    figure = scores_figure(results, summary)
    # A fixed hash salt and no date keep the file the same for the same numbers.
    with matplotlib.rc_context({"svg.hashsalt": "scores"}):
        for suffix, metadata in ((".svg", {"Date": None}), (".png", {})):
            with new_file(folder / f"scores{suffix}") as temporary:
                figure.savefig(temporary, format=suffix[1:], dpi=150, metadata=metadata)
    plt.close(figure)


def scores_figure(results: pd.DataFrame, summary: Summary) -> Figure:
    methods = [row.method for row in summary.rows]
    figure, axes = plt.subplots(
        1,
        len(summary.targets),
        figsize=(2.2 + 2.6 * len(summary.targets), 1.2 + 0.36 * len(methods)),
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    for axis, target in zip(axes[0], summary.targets, strict=True):
        for position, row in enumerate(summary.rows):
            colour = _COLOURS[position % len(_COLOURS)]
            runs = results[(results["method"] == row.method) & (results["target"] == target)]
            axis.plot(runs["value"], [position] * len(runs), "o", color=colour, alpha=0.6, markersize=6)
            if target in row.scores:
                axis.plot([row.scores[target].mean], [position], "|", color=colour, markersize=18, markeredgewidth=3)
        axis.set_title(target)
        axis.set_xlabel(f"dev {summary.metrics.get(target, '')}")
        axis.grid(axis="x", alpha=0.3)
    axes[0][0].set_yticks(range(len(methods)), [method_text(method) for method in methods])
    axes[0][0].set_ylim(max(1, len(methods)) - 0.5, -0.5)
    return figure
