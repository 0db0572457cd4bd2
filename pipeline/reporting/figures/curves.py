"""Learning curves, and scores on few training rows."""

from collections.abc import Iterator

import pandas as pd
from matplotlib.ticker import MaxNLocator

from pipeline.reporting.epochs import epoch_scores
from pipeline.reporting.figures.drawing import Drawing, legend_below, look_of, panels
from pipeline.reporting.low_resource import low_resource
from pipeline.reporting.report import Figure
from pipeline.reporting.runs import StudyRuns


def learning_curves(runs: StudyRuns) -> Iterator[Drawing]:
    """Dev score by epoch, a panel a target, a line a row: means over seeds, and over the sources of sequential."""
    scores = epoch_scores(runs)
    if scores.empty:
        return
    shown = [target for target in runs.study.targets if (scores["target"] == target).any()]
    canvas, axes = panels(len(shown))
    row = scores["method"].map(lambda line: line.row)
    for axis, target in zip(axes, shown, strict=True):
        for name in runs.rows:
            own = scores[(scores["target"] == target) & (row == name)]
            if own.empty:
                continue
            means = own.groupby("epoch")["dev"].mean()
            axis.plot(means.index, means, **look_of(name, runs.rows), markersize=4, label=runs.study.title(name))
        epochs = sorted(scores[scores["target"] == target]["epoch"].unique())
        if len(epochs) <= 6:
            axis.set_xticks(epochs)
        else:
            axis.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axis.set(title=target, xlabel="epoch", ylabel=f"dev {runs.metrics[target]}")
        axis.grid(alpha=0.3)
    legend_below(canvas, axes)
    yield Drawing(Figure.of("learning-curves"), canvas, scores)


def low_resource_curves(runs: StudyRuns) -> Iterator[Drawing]:
    """Score by training rows of the target, a panel for the mean over the targets and one for each."""
    curve = low_resource(runs)
    if curve is None:
        return
    scopes = {"mean": curve.targets} if len(curve.targets) > 1 else {}
    scopes |= {target: [target] for target in curve.targets}
    canvas, axes = panels(len(scopes))
    numbers = []
    for axis, (title, targets) in zip(axes, scopes.items(), strict=True):
        sizes = []
        for name in curve.rows:
            scored = [(curve.train_rows(point, targets), curve.mean(name, targets, point)) for point in curve.points]
            points = [(size, score) for size, score in scored if size is not None and score is not None]
            if not points:
                continue
            look = look_of(name, runs.rows)
            axis.plot(*zip(*points, strict=True), **look, markersize=5, label=runs.study.title(name))
            numbers += [(name, title, size, score) for size, score in points]
            sizes += [size for size, _ in points]
        ticks = sorted(set(sizes))
        axis.set_xscale("log")
        axis.set_xticks(ticks, [f"{size:,.0f}" for size in ticks])
        axis.set_xticks([], minor=True)
        axis.set(title=title, xlabel="training rows of the target", ylabel="score")
        axis.grid(alpha=0.3)
    legend_below(canvas, axes)
    table = pd.DataFrame(numbers, columns=["method", "target", "train_rows", "score"])
    yield Drawing(Figure.of("low-resource"), canvas, table)
