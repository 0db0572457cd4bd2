"""Which adapters a fusion listens to, and where the tokens of a sentence look, layer by layer."""

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from pipeline.reporting.figures.drawing import SEQUENTIAL_MAP, Drawing, heat_map, label_width, panels
from pipeline.reporting.report import Figure
from pipeline.reporting.runs import AttentionMap, StudyRuns

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
    shares = pd.concat(
        [_numbered(part).pivot(index=["site", "layer"], columns="adapter", values="weight") for part in parts]
    )
    means = shares.fillna(0.0).groupby(level=["site", "layer"], sort=False).mean()
    return means.melt(var_name="adapter", value_name="weight", ignore_index=False).reset_index()


def _numbered(part: pd.DataFrame) -> pd.DataFrame:
    """``part`` with experts, which are named by their run, numbered instead."""
    experts = [name for name in dict.fromkeys(part["adapter"]) if "@" in name]
    return part.replace({"adapter": {name: f"expert {number}" for number, name in enumerate(experts, start=1)}})


def attention_maps(runs: StudyRuns) -> Iterator[Drawing]:
    """The maps that were asked for, in one figure."""
    if runs.maps:
        yield attention_drawing(runs.maps)


def attention_drawing(maps: Sequence[AttentionMap]) -> Drawing:
    """A line of panels an input and model, a panel a layer."""
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
            part = shown.part(layer, max(shown.layers))
            axis.set_title(f"{shown.title}\nlayer {layer}{f', {part}' if part else ''}", fontsize=8)
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
    return Drawing(Figure.of("attention-maps", texts=texts), canvas, pd.DataFrame(rows, columns=names))
