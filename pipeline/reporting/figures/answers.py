"""What the models answer: confusion matrices of classes, scatter of scores."""

import statistics
from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.ticker import LogLocator, NullLocator

from pipeline.data.metric_names import METRICS_OF
from pipeline.records.studies import Line
from pipeline.reporting.figures.drawing import SEQUENTIAL_MAP, Drawing, heat_map, panels, short_number
from pipeline.reporting.report import Figure
from pipeline.reporting.runs import Scored, StudyRuns
from pipeline.settings.kinds import KINDS

MOST_CLASSES = 12
_RING = "#D55E00"
LONGEST_ID = 10
"""Longer ids are cut in the picture; the caption has them whole."""


def confusions(runs: StudyRuns) -> Iterator[Drawing]:
    """For every task with classes: the reference and the line with the best mean, over all seeds."""
    for target in _tasks(runs):
        lines, classes = _shown(runs, target), _classes(runs, target)
        if not lines or not 2 <= len(classes) <= MOST_CLASSES:
            continue
        canvas, axes = panels(len(lines), height=1.3 + 0.32 * len(classes))
        numbers = []
        for axis, line in zip(axes, lines, strict=True):
            counts = np.zeros((len(classes), len(classes)))
            for scored in _group(runs, line, target):
                table = runs.predictions(scored.record.run, target)
                np.add.at(counts, (table["label"].to_numpy(int), table["prediction"].to_numpy(int)), 1)
            shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
            texts = [[f"{100 * share:.0f}" for share in row] for row in shares]
            heat_map(axis, shares, classes, classes, texts, cmap=SEQUENTIAL_MAP, vmin=0, vmax=1)
            axis.set(title=runs.title(line), xlabel="predicted", ylabel="true")
            numbers += [
                (line, classes[true], classes[guess], int(counts[true, guess]), shares[true, guess])
                for true, guess in np.ndindex(counts.shape)
            ]
        table = pd.DataFrame(numbers, columns=["method", "label", "prediction", "examples", "share_of_label"])
        yield Drawing(Figure.of("confusion-{target}", target=target, lines=_named(runs, lines)), canvas, table)


def scatters(runs: StudyRuns) -> Iterator[Drawing]:
    """For every task with scores: the same two, their first seed, the worst example marked."""
    for target in _tasks(runs):
        lines = _shown(runs, target)
        if not lines or _group(runs, lines[0], target)[0].record.score(target).metric not in METRICS_OF["score"]:
            continue
        canvas, axes = panels(len(lines), height=2.9, sharex=True, sharey=True)
        parts, worst = [], []
        for axis, line in zip(axes, lines, strict=True):
            scored = _group(runs, line, target)[0]
            table = runs.predictions(scored.record.run, target)[["id", "label", "prediction"]]
            labels, predictions = table["label"], table["prediction"]
            bins = axis.hexbin(
                labels, predictions, gridsize=22, cmap=SEQUENTIAL_MAP, mincnt=1, norm=LogNorm(), linewidths=0
            )
            at = int((predictions - labels).abs().to_numpy().argmax())
            name, label, prediction = str(table["id"].iloc[at]), labels.iloc[at], predictions.iloc[at]
            _ring(axis, name, label, prediction, on_left=label < labels.median())
            ends = [labels.min(), labels.max()]
            axis.plot(ends, ends, color="#888888", linewidth=1, linestyle="--")
            axis.set(title=runs.title(line), xlabel="label")
            axis.label_outer()
            worst.append(f"{runs.title(line)}: example {name}, {prediction:.2f} for {label:.2f}")
            mark = np.arange(len(table)) == at
            parts.append(pd.DataFrame({"method": str(line), "seed": scored.entry.seed, **table, "worst": mark}))
        axes[0].set_ylabel("prediction")
        bar = canvas.colorbar(bins, ax=axes, label="examples", shrink=0.8, format=short_number)
        bar.ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        bar.ax.yaxis.set_minor_locator(NullLocator())
        figure = Figure.of("scatter-{target}", target=target, lines=_named(runs, lines), worst="; ".join(worst))
        yield Drawing(figure, canvas, pd.concat(parts, ignore_index=True))


def _ring(axis: Axes, name: str, label: float, prediction: float, on_left: bool) -> None:
    """Mark an example, with its name towards the middle of the panel."""
    axis.plot([label], [prediction], "o", color=_RING, markersize=9, fillstyle="none", markeredgewidth=2)
    note = axis.annotate(
        f"id {name if len(name) <= LONGEST_ID else f'{name[:LONGEST_ID]}…'}",
        (label, prediction),
        xytext=(8 if on_left else -8, 0),
        textcoords="offset points",
        ha="left" if on_left else "right",
        va="center",
        color=_RING,
        bbox={"boxstyle": "round,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.85},
    )
    note.set_in_layout(False)


def _tasks(runs: StudyRuns) -> list[str]:
    """The targets, and the other tasks that joint training was scored on."""
    joint = (
        scored.record for scored in runs.scored if KINDS[scored.record.kind].is_joint and scored.entry.rows is None
    )
    return list(dict.fromkeys([*runs.study.targets, *(task for record in joint for task in record.trained_on)]))


def _group(runs: StudyRuns, line: Line, task: str) -> list[Scored]:
    """The runs of a line on a target; on another task the models that were trained on it and the targets at once."""
    if task in runs.study.targets:
        return runs.cell(line, task)
    joint = (scored for scored in runs.all(line) if KINDS[scored.record.kind].is_joint)
    return list({each.record.run: each for each in joint if task in each.record.trained_on}.values())


def _shown(runs: StudyRuns, target: str) -> list[Line]:
    """The reference and the line with the best mean score, once if they are one."""
    groups = {line: _group(runs, line, target) for line in runs.lines}
    means = {
        line: statistics.mean(scored.record.score(target).value for scored in group)
        for line, group in groups.items()
        if group
    }
    if not means:
        return []
    best = max(means, key=lambda line: means[line])
    return list(dict.fromkeys(line for line in (runs.reference, best) if line in means))


def _named(runs: StudyRuns, lines: Sequence[Line]) -> str:
    names = [runs.title(line) for line in lines]
    return f"{names[0]} (the reference) and {names[1]} (the best mean)" if len(names) > 1 else names[0]


def _classes(runs: StudyRuns, target: str) -> list[str]:
    """The names of a target's classes, as the runs trained on it have them; none for a score."""
    records = (s.record for s in runs.scored if target in s.record.trained_on)
    return [str(name) for name in next((r.described(target)["meaning"].get("classes") or [] for r in records), [])]
