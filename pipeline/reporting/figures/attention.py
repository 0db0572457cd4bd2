"""Which adapters a fusion listens to, layer by layer."""

from collections.abc import Iterator

import pandas as pd

from pipeline.reporting.entries import Line
from pipeline.reporting.figures.drawing import SEQUENTIAL_MAP, Drawing, heat_map, panels
from pipeline.reporting.report import Figure
from pipeline.reporting.runs import StudyRuns


def fusion_attention(runs: StudyRuns) -> Iterator[Drawing]:
    """A figure a fusion and target, a panel a site: mean over dev tokens and seeds."""
    for line, target, group in runs.cells():
        parts = [runs.ledger.attention(scored.record.run) for scored in group]
        known = [part for part in parts if part is not None]
        if known:
            yield _drawn(runs, line, target, pd.concat(known, ignore_index=True))


def _drawn(runs: StudyRuns, line: Line, target: str, table: pd.DataFrame) -> Drawing:
    means = table.groupby(["site", "layer", "adapter"])["weight"].mean().reset_index()
    sites = [site for site in ("attention", "ffn") if site in set(means["site"])]
    adapters = list(dict.fromkeys(table["adapter"]))
    layers = sorted(means["layer"].unique())
    canvas, axes = panels(len(sites), height=1.0 + 0.3 * len(layers), sharey=True)
    for axis, site in zip(axes, sites, strict=True):
        matrix = means[means["site"] == site].pivot(index="layer", columns="adapter", values="weight")
        values = matrix.reindex(index=layers, columns=adapters).to_numpy()
        texts = [[f"{value:.2f}".removeprefix("0") if value == value else "" for value in row] for row in values]
        image = heat_map(axis, values, list(map(str, layers)), adapters, texts, cmap=SEQUENTIAL_MAP, vmin=0, vmax=1)
        axis.set(title={"attention": "after attention", "ffn": "after feed-forward"}[site], xlabel="adapter")
    axes[0].set_ylabel("layer")
    canvas.colorbar(image, ax=axes, label="attention", shrink=0.8)
    figure = Figure.of("attention-{line}-{target}", line=line, target=target, title=runs.title(line))
    return Drawing(figure, canvas, means)
