"""Where the tokens of a sentence look, model by model and layer by layer."""

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from pipeline.reporting.figures.drawing import SEQUENTIAL_MAP, Drawing, panels
from pipeline.reporting.report import Figure
from pipeline.reporting.runs import AttentionMap, StudyRuns


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
            axis.set_title(f"{shown.title}\nlayer {layer}", fontsize=8)
    for axis in axes:
        if not axis.has_data():
            axis.remove()
    canvas.colorbar(image, ax=[axis for axis in axes if axis.has_data()], label="attention", shrink=0.6)
    texts = "; ".join(dict.fromkeys(f"“{shown.text}”" for shown in maps))
    return Drawing(Figure.of("attention-maps", texts=texts), canvas, _numbers(maps))


def _numbers(maps: Sequence[AttentionMap]) -> pd.DataFrame:
    rows = [
        (shown.run, shown.title, shown.text, layer, at, shown.tokens[at], to, shown.keys(layer)[to], float(value))
        for shown in maps
        for layer, values in shown.layers.items()
        for (at, to), value in np.ndenumerate(values)
    ]
    names = ["run", "method", "text", "layer", "position", "token", "looks_at_position", "looks_at", "attention"]
    return pd.DataFrame(rows, columns=names)
