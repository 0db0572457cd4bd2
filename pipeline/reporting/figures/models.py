"""Figures of models: what they answer, what their tokens and fusions attend to."""

import statistics
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.colors import LogNorm
from matplotlib.ticker import LogLocator, NullLocator

from pipeline.data.labels import METRICS_OF
from pipeline.records.studies import Line
from pipeline.reporting.figures import SEQUENTIAL_MAP, Drawing, heat_map, label_width, panels, short_number
from pipeline.reporting.report import Figure
from pipeline.reporting.runs import Scored, StudyRuns
from pipeline.settings.kinds import KINDS

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
        canvas, axes = panels(len(groups), height=1.3 + 0.32 * len(classes))
        numbers = []
        for axis, (line, group) in zip(axes, groups.items(), strict=True):
            counts = np.zeros((len(classes), len(classes)))
            for scored in group:
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
        yield Drawing(Figure.of("confusion-{target}", target=target, lines=_named(runs, groups)), canvas, table)


def scatters(runs: StudyRuns) -> Iterator[Drawing]:
    """For every task with scores: the same two, their first seed, the worst example marked."""
    for target, groups in _shown(runs):
        if next(iter(groups.values()))[0].record.score(target).metric not in METRICS_OF["score"]:
            continue
        canvas, axes = panels(len(groups), height=2.9, sharex=True, sharey=True)
        parts, worst = [], []
        for axis, (line, (scored, *_)) in zip(axes, groups.items(), strict=True):
            table = runs.predictions(scored.record.run, target)[["id", "label", "prediction"]]
            labels, predictions = table["label"], table["prediction"]
            bins = axis.hexbin(
                labels, predictions, gridsize=22, cmap=SEQUENTIAL_MAP, mincnt=1, norm=LogNorm(), linewidths=0
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
        bar = canvas.colorbar(bins, ax=axes, label="examples", shrink=0.8, format=short_number)
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
                groups[line], means[line] = group, statistics.mean(s.record.score(task).value for s in group)
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
    width = 0.8 + 0.42 * len(adapters) + label_width(titles) / len(sites)
    canvas, axes = panels(len(sites), height=1.2 + 0.24 * len(lines), width=width, sharey=True)
    for axis, site in zip(axes, sites, strict=True):
        own = table[table["site"] == site]
        matrix = own.pivot_table(index=["method", "target"], columns="adapter", values="weight", aggfunc="mean")
        values = matrix.reindex(index=pd.MultiIndex.from_tuples(lines), columns=adapters).to_numpy()
        texts = [[f"{value:.2f}".removeprefix("0") if value == value else "" for value in row] for row in values]
        image = heat_map(axis, values, titles, adapters, texts, cmap=SEQUENTIAL_MAP, vmin=0, vmax=1)
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
    canvas, axes = panels(columns * len(maps), height=size, width=max(size, 2.4), columns=columns)
    highest = max(float(values.max()) for shown in maps for values in shown.layers.values())
    for line, shown in enumerate(maps):
        for axis, layer in zip(axes[line * columns :], shown.layers, strict=False):
            image = axis.imshow(shown.layers[layer], cmap=SEQUENTIAL_MAP, vmin=0, vmax=highest, aspect="auto")
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
