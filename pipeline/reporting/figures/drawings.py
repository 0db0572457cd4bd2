"""Every figure: scores and differences, and what models answer, and what their tokens and fusions attend to."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import mean, stdev
from textwrap import fill
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, NullLocator

from pipeline.data.labels import METRICS_OF
from pipeline.records.studies import Line
from pipeline.reporting import figures
from pipeline.reporting.figures import Drawing
from pipeline.reporting.opponents import leading_duels, leading_fusion
from pipeline.reporting.report import MARKS, MOST_NAMED, Figure, capital, points, where_text
from pipeline.reporting.rows import epoch_scores, low_resource, main_comparisons, which_compared
from pipeline.reporting.runs import Scored, StudyRuns
from pipeline.reporting.transfer import changes, contrasts
from pipeline.settings.kinds import KINDS
from pipeline.stats.paired import Comparison

_TITLE_WIDTH, _NAME_WIDTH = 38, 24
"""Characters that fit above and beside a panel."""
_VERDICTS = {"better": "#009E73", "worse": "#D55E00", "not significant": "#888888"}


def forest(runs: StudyRuns) -> Iterator[Drawing]:
    """Two panels on one scale, on the mean of the targets; nothing in a study without any comparison."""
    leading, against = leading_fusion(runs), runs.title(runs.reference)
    which = which_compared(runs)
    methods = f"methods compared with {against}" + (f" ({which})" if which else "")
    groups = {methods: {runs.title(x): comparison for x, comparison in main_comparisons(runs).items()}}
    if leading is not None:
        groups = {f"{runs.title(leading)} against": leading_duels(runs), **groups}
    groups = {title: own for title, own in groups.items() if own}
    if not groups:
        return
    sizes = [len(own) + 1.2 for own in groups.values()]
    # In short lines, so that the picture can be read on a telephone.
    names = [fill(name, _NAME_WIDTH) for own in groups.values() for name in own]
    line = 0.23 if "\n" not in "".join(names) else 0.36
    height = 0.5 / len(groups) + line * sum(sizes) / len(groups)
    width = 2.6 + figures.label_width(part for name in names for part in name.split("\n"))
    canvas, axes = figures.panels(len(groups), columns=1, height=height, width=width, sharex=True, height_ratios=sizes)
    for axis, (title, own) in zip(axes, groups.items(), strict=True):
        _draw(axis, own)
        axis.set_title(fill(capital(title), _TITLE_WIDTH), loc="left")
    # Beside the names there is room for a long label, beyond the right end there is none.
    axes[-1].set_xlabel(f"difference in points on {where_text(runs.study)}", loc="right")
    numbers = [(title, name, *_test(test)) for title, own in groups.items() for name, test in own.items()]
    yield Drawing(Figure.of("forest"), canvas, pd.DataFrame(numbers, columns=["group", "method", *_TEST]))


_TEST = ("difference", "low", "high", "p_value", "verdict")


def _test(comparison: Comparison) -> tuple[Any, ...]:
    return comparison.difference, *comparison.interval, comparison.p_value, comparison.verdict


def _draw(axis: Axes, compared: Mapping[str, Comparison]) -> None:
    for place, comparison in enumerate(compared.values()):
        low, high = comparison.interval
        colour = _VERDICTS[comparison.verdict]
        size = 6 if comparison.significant else 4
        axis.plot([100 * low, 100 * high], [place, place], color=colour, linewidth=2, solid_capstyle="butt")
        axis.plot([100 * comparison.difference], [place], "o", color=colour, markersize=size)
        text = f"{points(comparison.difference)} {MARKS[comparison.verdict]}"
        axis.annotate(text, (1.01, place), xycoords=("axes fraction", "data"), va="center", fontsize="small")
    axis.axvline(0, color="#888888", linewidth=1)
    axis.set_yticks(range(len(compared)), [fill(name, _NAME_WIDTH) for name in compared])
    axis.set_ylim(len(compared) - 0.4, -0.6)
    axis.tick_params(axis="y", length=0)
    axis.spines["left"].set_visible(False)
    axis.grid(axis="x", alpha=0.3)


def pareto(runs: StudyRuns) -> Iterator[Drawing]:
    """A panel for the mean over all targets and, of few, one for each; a step line joins what nothing cheaper beats."""
    table = _numbers(runs)
    if table.empty:
        return
    scopes = list(dict.fromkeys(table["target"]))
    if len(runs.study.targets) > MOST_NAMED:
        scopes = scopes[:1]  # the targets one by one are in the CSV
    height, width = (3.4, 5.4) if len(scopes) == 1 else (2.5, 2.7)
    canvas, axes = figures.panels(len(scopes), height=height, width=width)
    for axis, scope in zip(axes, scopes, strict=True):
        own = table[table["target"] == scope]
        for point in own.itertuples():
            axis.errorbar(
                # A model with nothing to train has no place on a logarithmic axis; 1 is its left end.
                max(point.trainable_parameters, 1),
                point.score,
                yerr=point.deviation or None,
                **figures.look_of(point.method.row, runs.rows) | {"linestyle": "none"},
                label=runs.study.title(point.method.row),
            )
        front = own[own["front"]].sort_values("trainable_parameters")
        steps = front["trainable_parameters"].clip(lower=1)
        axis.plot(steps, front["score"], drawstyle="steps-post", color="#888888", linewidth=1, zorder=0)
        axis.set_xscale("log")
        axis.xaxis.set_major_locator(LogLocator(numticks=5))
        axis.xaxis.set_major_formatter(figures.short_number)
        axis.xaxis.set_minor_formatter(NullFormatter())
        axis.set(title=scope, xlabel="trainable parameters", ylabel="score")
        axis.grid(alpha=0.3)
    figures.legend_below(canvas, axes)
    joint = runs.titles(Line(name) for name in runs.rows if runs.study.row(name).kind.is_joint)
    yield Drawing(Figure.of("pareto", joint=joint), canvas, table)


def _numbers(runs: StudyRuns) -> pd.DataFrame:
    points = []
    for line in runs.lines:
        own: list[tuple[Line, str, float, float, float]] = []
        for target, group in runs.groups(line).items():
            values = [scored.value for scored in group]
            deviation = stdev(values) if len(values) > 1 else 0.0
            trained = mean(scored.record.cost.trainable_parameters for scored in group)
            own.append((line, target, trained, mean(values), deviation))
        if len(own) == len(runs.study.targets) > 1:
            points.append((line, "mean", mean(point[2] for point in own), mean(point[3] for point in own), 0.0))
        points += own
    table = pd.DataFrame(points, columns=["method", "target", "trainable_parameters", "score", "deviation"])
    # A point is behind the front if another one trains no more and scores higher, or trains less and scores the same.
    table["front"] = [
        not any(
            other == target and ((cost <= trained and value > score) or (cost < trained and value == score))
            for _, other, cost, value, _ in points
        )
        for _, target, trained, score, _ in points
    ]
    order = ["mean", *runs.study.targets]
    return table.sort_values("target", key=lambda column: column.map(order.index), kind="stable", ignore_index=True)


def learning_curves(runs: StudyRuns) -> Iterator[Drawing]:
    """Dev score by epoch, a panel a target, a line a row: means over seeds, and over the sources of sequential."""
    scores = epoch_scores(runs)
    if scores.empty:
        return
    shown = [target for target in runs.study.targets if (scores["target"] == target).any()]
    canvas, axes = figures.panels(len(shown))
    for axis, target in zip(axes, shown, strict=True):
        here = scores[scores["target"] == target]
        rows = here["method"].map(lambda line: line.row)
        for name in runs.rows:
            means = here[rows == name].groupby("epoch")["dev"].mean()
            if len(means):
                look = figures.look_of(name, runs.rows)
                axis.plot(means.index, means, **look, markersize=4, label=runs.study.title(name))
        epochs = sorted(here["epoch"].unique())
        if len(epochs) <= 6:
            axis.set_xticks(epochs)
        else:
            axis.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axis.set(title=target, xlabel="epoch", ylabel=f"dev {runs.metrics[target]}")
        axis.grid(alpha=0.3)
    figures.legend_below(canvas, axes)
    yield Drawing(Figure.of("learning-curves"), canvas, scores)


def low_resource_curves(runs: StudyRuns) -> Iterator[Drawing]:
    """Score by training rows of the target, a panel for the mean over the targets and one for each."""
    curve = low_resource(runs)
    if not curve.rows:
        return
    scopes = {"mean": curve.targets} if len(curve.targets) > 1 else {}
    scopes |= {target: [target] for target in curve.targets}
    canvas, axes = figures.panels(len(scopes))
    numbers = []
    for axis, (title, targets) in zip(axes, scopes.items(), strict=True):
        for name in curve.rows:
            scored = [(curve.train_rows(point, targets), curve.mean(name, targets, point)) for point in curve.points]
            points = [(size, score) for size, score in scored if size is not None and score is not None]
            if points:
                look = figures.look_of(name, runs.rows)
                axis.plot(*zip(*points, strict=True), **look, markersize=5, label=runs.study.title(name))
                numbers += [(name, title, size, score) for size, score in points]
        ticks = sorted({size for _, scope, size, _ in numbers if scope == title})
        axis.set_xscale("log")
        axis.set_xticks(ticks, [f"{size:,.0f}" for size in ticks])
        axis.set_xticks([], minor=True)
        axis.set(title=title, xlabel="training rows of the target", ylabel="score")
        axis.grid(alpha=0.3)
    figures.legend_below(canvas, axes)
    table = pd.DataFrame(numbers, columns=["method", "target", "train_rows", "score"])
    yield Drawing(Figure.of("low-resource"), canvas, table)


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
    canvas, axes = figures.panels(len(names), height=1.1 + 0.34 * len(sources), width=1.4 + 0.75 * len(targets))
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
    width = 2.2 + figures.label_width(lines.values()) + 0.8 * len(targets)
    canvas, (axis,) = figures.panels(1, height=1.1 + 0.34 * len(lines), width=width)
    image = _difference_map(axis, lines, targets, differences, limit, marks)
    axis.set_xlabel("target")
    canvas.colorbar(image, ax=axis, label="difference, points")
    numbers = [(c.line, c.base, c.sources, c.target, *_test(c.comparison)) for c in all_contrasts]
    table = pd.DataFrame(numbers, columns=["method", "against", "sources", "target", *_TEST])
    yield Drawing(Figure.of("built-on"), canvas, table)


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
    how = {"cmap": figures.DIVERGING_MAP, "vmin": -100 * limit, "vmax": 100 * limit}
    return figures.heat_map(axis, 100 * values, list(rows.values()), columns, texts, **how)


MOST_CLASSES = 12
_RING = "#D55E00"
LONGEST_ID = 10
"""Longer ids are cut in the picture; the caption has them whole."""


def confusions(runs: StudyRuns) -> Iterator[Drawing]:
    """For every task with one class a row: the reference and the line with the best mean, over all seeds."""
    for target, groups in _shown(runs):
        records = (scored.record for scored in runs.scored if target in scored.record.trained_on)
        # As the runs trained on it have them; a task with scores has none, and several labels a row are not drawn.
        meaning: dict[str, Any] = next((record.described(target)["meaning"] for record in records), {})
        classes = [] if meaning.get("kind") == "labels" else [str(name) for name in meaning.get("classes") or ()]
        if not 2 <= len(classes) <= MOST_CLASSES:
            continue
        canvas, axes = figures.panels(len(groups), height=1.3 + 0.32 * len(classes))
        numbers = []
        for axis, (line, group) in zip(axes, groups.items(), strict=True):
            counts = np.zeros((len(classes), len(classes)))
            for scored in group:
                table = runs.predictions(scored.record.run, target)
                np.add.at(counts, (table["label"].to_numpy(int), table["prediction"].to_numpy(int)), 1)
            shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
            texts = [[f"{100 * share:.0f}" for share in row] for row in shares]
            figures.heat_map(axis, shares, classes, classes, texts, cmap=figures.SEQUENTIAL_MAP, vmin=0, vmax=1)
            axis.set(title=runs.title(line), xlabel="predicted", ylabel="true")
            numbers += [
                (line, classes[true], classes[guess], int(counts[true, guess]), shares[true, guess])
                for true, guess in np.ndindex(counts.shape)
            ]
        table = pd.DataFrame(numbers, columns=["method", "label", "prediction", "examples", "share_of_label"])
        yield Drawing(Figure.of("confusion-{target}", target=target, lines=_named(runs, groups)), canvas, table)


def scatters(runs: StudyRuns) -> Iterator[Drawing]:
    """For every task with scores: the same two, their first seed, the worst example marked."""
    for target, groups in _shown(runs):
        if next(iter(groups.values()))[0].record.score(target).metric not in METRICS_OF["score"]:
            continue
        canvas, axes = figures.panels(len(groups), height=2.9, sharex=True, sharey=True)
        parts, worst = [], []
        for axis, (line, (scored, *_)) in zip(axes, groups.items(), strict=True):
            table = runs.predictions(scored.record.run, target)[["id", "label", "prediction"]]
            labels, predictions = table["label"], table["prediction"]
            bins = axis.hexbin(
                labels, predictions, gridsize=22, cmap=figures.SEQUENTIAL_MAP, mincnt=1, norm=LogNorm(), linewidths=0
            )
            at = int((predictions - labels).abs().to_numpy().argmax())
            name, label, prediction = str(table["id"].iloc[at]), labels.iloc[at], predictions.iloc[at]
            axis.plot([label], [prediction], "o", color=_RING, markersize=9, fillstyle="none", markeredgewidth=2)
            # The name stands towards the middle of the panel.
            side, ha = (8, "left") if label < labels.median() else (-8, "right")
            short = name if len(name) <= LONGEST_ID else f"{name[:LONGEST_ID]}…"
            box = {"boxstyle": "round,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.85}
            place: dict[str, Any] = {"xytext": (side, 0), "textcoords": "offset points", "ha": ha, "va": "center"}
            axis.annotate(f"id {short}", (label, prediction), **place, color=_RING, bbox=box).set_in_layout(False)
            ends = [labels.min(), labels.max()]
            axis.plot(ends, ends, color="#888888", linewidth=1, linestyle="--")
            axis.set(title=runs.title(line), xlabel="label")
            axis.label_outer()
            worst.append(f"{runs.title(line)}: example {name}, {prediction:.2f} for {label:.2f}")
            mark = np.arange(len(table)) == at
            parts.append(pd.DataFrame({"method": str(line), "seed": scored.entry.seed, **table, "worst": mark}))
        axes[0].set_ylabel("prediction")
        bar = canvas.colorbar(bins, ax=axes, label="examples", shrink=0.8, format=figures.short_number)
        bar.ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        bar.ax.yaxis.set_minor_locator(NullLocator())
        figure = Figure.of("scatter-{target}", target=target, lines=_named(runs, groups), worst="; ".join(worst))
        yield Drawing(figure, canvas, pd.concat(parts, ignore_index=True))


def _shown(runs: StudyRuns) -> Iterator[tuple[str, dict[Line, list[Scored]]]]:
    """For every target, and every other task of joint training: the reference and the line with the best mean score.

    With their runs on the target; on another task, with the models that were trained on it and the targets at once.
    """
    joint = {
        line: {scored.record.run: scored for scored in runs.all(line) if KINDS[scored.record.kind].is_joint}
        for line in runs.lines
    }
    others = (task for own in joint.values() for scored in own.values() for task in scored.record.trained_on)
    for task in dict.fromkeys((*runs.study.targets, *others)):
        groups, means = {}, {}
        for line, own in joint.items():
            answering = [scored for scored in own.values() if task in scored.record.trained_on]
            if group := runs.cell(line, task) if task in runs.study.targets else answering:
                groups[line], means[line] = group, mean(s.record.score(task).value for s in group)
        if groups:
            best = max(groups, key=lambda line: means[line])
            yield task, {line: groups[line] for line in (runs.reference, best) if line in groups}


def _named(runs: StudyRuns, lines: Iterable[Line]) -> str:
    names = [runs.title(line) for line in lines]
    return f"{names[0]} (the reference) and {names[1]} (the best mean)" if len(names) > 1 else names[0]


_SITES = {"attention": "after attention", "ffn": "after feed-forward"}


def fusion_attention(runs: StudyRuns) -> Iterator[Drawing]:
    """One figure, a panel a site, a line a fusion and target: mean over layers, dev tokens and seeds.

    An adapter that the fusion of a seed did not take has no share there.
    """
    tables = []
    for line, target, group in runs.cells():
        parts = [part for scored in group if (part := runs.ledger.attention(scored.record.run)) is not None]
        if parts:
            means = _mean_shares(parts)
            tables.append(means.assign(method=pd.Series([line] * len(means)), target=target))
    if not tables:
        return
    table = pd.concat(tables, ignore_index=True)[["method", "target", "site", "layer", "adapter", "weight"]]
    lines = list(dict.fromkeys(zip(table["method"], table["target"], strict=True)))
    several = len(runs.study.targets) > 1
    titles = [f"{runs.title(line)}, {target}" if several else runs.title(line) for line, target in lines]
    adapters = [task for task in runs.study.all_tasks if task in set(table["adapter"])]
    adapters += sorted(set(table["adapter"]) - set(adapters))
    sites = [site for site in _SITES if site in set(table["site"])]
    width = 0.8 + 0.42 * len(adapters) + figures.label_width(titles) / len(sites)
    canvas, axes = figures.panels(len(sites), height=1.2 + 0.24 * len(lines), width=width, sharey=True)
    for axis, site in zip(axes, sites, strict=True):
        own = table[table["site"] == site]
        matrix = own.pivot_table(index=["method", "target"], columns="adapter", values="weight", aggfunc="mean")
        values = matrix.reindex(index=pd.MultiIndex.from_tuples(lines), columns=adapters).to_numpy()
        texts = [[f"{value:.2f}".removeprefix("0") if value == value else "" for value in row] for row in values]
        image = figures.heat_map(axis, values, titles, adapters, texts, cmap=figures.SEQUENTIAL_MAP, vmin=0, vmax=1)
        axis.set(title=_SITES[site], xlabel="adapter")
    canvas.colorbar(image, ax=axes, label="attention", shrink=0.8)
    yield Drawing(Figure.of("fusion-attention"), canvas, table)


def _mean_shares(parts: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """The mean over seeds of ``weight`` by ``site``, ``layer`` and ``adapter``, of a table a seed."""
    shares = []
    for part in parts:
        # Experts are named by their run; the figure numbers them.
        experts = [name for name in dict.fromkeys(part["adapter"]) if "@" in name]
        numbers = {name: f"expert {number}" for number, name in enumerate(experts, start=1)}
        numbered = part.replace({"adapter": numbers})
        shares.append(numbered.pivot(index=["site", "layer"], columns="adapter", values="weight"))
    means = pd.concat(shares).fillna(0.0).groupby(level=["site", "layer"], sort=False).mean()
    return means.melt(var_name="adapter", value_name="weight", ignore_index=False).reset_index()


def attention_maps(runs: StudyRuns) -> Iterator[Drawing]:
    """The maps that were asked for, in one figure: a line of panels an input and model, a panel a layer."""
    maps = runs.maps
    if not maps:
        return
    columns = max(len(shown.layers) for shown in maps)
    longest = max(len(shown.keys(layer)) for shown in maps for layer in shown.layers)
    size = 1.2 + 0.13 * longest
    canvas, axes = figures.panels(columns * len(maps), height=size, width=max(size, 2.4), columns=columns)
    highest = max(float(values.max()) for shown in maps for values in shown.layers.values())
    for line, shown in enumerate(maps):
        for axis, layer in zip(axes[line * columns :], shown.layers, strict=False):
            image = axis.imshow(shown.layers[layer], cmap=figures.SEQUENTIAL_MAP, vmin=0, vmax=highest, aspect="auto")
            axis.set_xticks(range(len(shown.keys(layer))), shown.keys(layer), rotation=90, fontsize=6)
            axis.set_yticks(range(len(shown.tokens)), shown.tokens, fontsize=6)
            axis.tick_params(length=0)
            top = shown.own_layers
            part = "" if top is None else ", its own" if layer > max(shown.layers) - top else ", shared"
            axis.set_title(f"{shown.title}\nlayer {layer}{part}", fontsize=8)
    for axis in axes:
        if not axis.has_data():
            axis.remove()
    canvas.colorbar(image, ax=[axis for axis in axes if axis.has_data()], label="attention", shrink=0.6)
    texts = "; ".join(dict.fromkeys(f"“{shown.text}”" for shown in maps))
    rows = [
        (shown.run, shown.title, shown.text, layer, at, shown.tokens[at], to, shown.keys(layer)[to], float(value))
        for shown in maps
        for layer, values in shown.layers.items()
        for (at, to), value in np.ndenumerate(values)
    ]
    names = ["run", "method", "text", "layer", "position", "token", "looks_at_position", "looks_at", "attention"]
    yield Drawing(Figure.of("attention-maps", texts=texts), canvas, pd.DataFrame(rows, columns=names))
