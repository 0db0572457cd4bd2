"""Where the tokens of a sentence look, model by model and layer by layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from pipeline.reporting.figures.drawing import SEQUENTIAL_MAP, Drawing, panels
from pipeline.reporting.report import Figure


@dataclass(frozen=True)
class AttentionMap:
    """What a model's layers attend to in one input."""

    run: str
    title: str
    text: str
    tokens: tuple[str, ...]
    layers: Mapping[int, np.ndarray]
    """By layer, counted from 1: (T, S), a row a token; S is T, or more where a prefix stands before the tokens."""

    def keys(self, layer: int) -> list[str]:
        """What is looked at: the tokens, after the places of a prefix."""
        more = self.layers[layer].shape[1] - len(self.tokens)
        return [*(f"prefix {place}" for place in range(1, more + 1)), *self.tokens]


def attention_drawing(maps: Sequence[AttentionMap]) -> Drawing | None:
    """A line of panels an input and model, a panel a layer; None without any."""
    if not maps:
        return None
    columns = max(len(found.layers) for found in maps)
    longest = max(len(found.keys(layer)) for found in maps for layer in found.layers)
    size = 1.2 + 0.13 * longest
    canvas, axes = panels(columns * len(maps), height=size, width=max(size, 2.4), columns=columns)
    highest = max(float(values.max()) for found in maps for values in found.layers.values())
    image: Any = None
    for line, found in enumerate(maps):
        for axis, layer in zip(axes[line * columns :], found.layers, strict=False):
            image = axis.imshow(found.layers[layer], cmap=SEQUENTIAL_MAP, vmin=0, vmax=highest, aspect="auto")
            axis.set_xticks(range(len(found.keys(layer))), found.keys(layer), rotation=90, fontsize=6)
            axis.set_yticks(range(len(found.tokens)), found.tokens, fontsize=6)
            axis.tick_params(length=0)
            axis.set_title(f"{found.title}\nlayer {layer}", fontsize=8)
    for axis in axes:
        if not axis.has_data():
            axis.remove()
    canvas.colorbar(image, ax=[axis for axis in axes if axis.has_data()], label="attention", shrink=0.6)
    texts = list(dict.fromkeys(found.text for found in maps))
    caption = (
        f"Attention for {'; '.join(f'“{text}”' for text in texts)}, after the softmax and averaged over heads: each"
        " token (left) looks at those below, and its row adds up to one. Layers are counted from 1, the lowest."
    )
    return Drawing(Figure("attention-maps", "Where the models look", caption), canvas, _numbers(maps))


def _numbers(maps: Sequence[AttentionMap]) -> pd.DataFrame:
    rows = [
        (found.run, found.title, found.text, layer, at, found.tokens[at], to, found.keys(layer)[to], float(value))
        for found in maps
        for layer, values in found.layers.items()
        for (at, to), value in np.ndenumerate(values)
    ]
    names = ["run", "method", "text", "layer", "position", "token", "looks_at_position", "looks_at", "attention"]
    return pd.DataFrame(rows, columns=names)
