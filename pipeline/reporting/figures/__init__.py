"""Figures of a study, as SVG and PNG, each with a CSV of its numbers; here is what they share."""

import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from pipeline.data.tables import write_table
from pipeline.reporting.report import Figure
from pipeline.system.atomic import new_file
from pipeline.system.errors import printable

INK = "#1c2127"
"""Axes and their texts, also in ``figures.mplstyle``; a dark page shows it light."""
# Okabe and Ito's palette: told apart under every common colour blindness; yellow, pale on white, comes last.
_COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", INK, "#F0E442"]
_MARKERS = ["o", "s", "^", "D", "v", "P", "X", "*", "<", ">"]
_LINES = ["-", "--", ":", "-."]

SEQUENTIAL_MAP = "cividis"
DIVERGING_MAP = "PuOr_r"
_STYLE = f"svg{{color:{INK}}}@media(prefers-color-scheme:dark){{svg{{color:#e3e7ec}}}}"


@dataclass(frozen=True)
class Drawing:
    """A figure before it is written: the picture, and every number in it."""

    figure: Figure
    canvas: Canvas
    numbers: pd.DataFrame


def look_of(name: str, names: Sequence[str]) -> dict[str, Any]:
    """Colour, marker and line style of one of ``names``: the same in every figure, and no two alike up to 40."""
    index = list(names).index(name)
    return {
        "color": _COLOURS[index % len(_COLOURS)],
        "marker": _MARKERS[index % len(_MARKERS)],
        "linestyle": _LINES[index // len(_COLOURS) % len(_LINES)],
    }


def panels(
    number: int, *, height: float = 2.5, width: float = 2.7, columns: int = 2, **options: Any
) -> tuple[Canvas, list[Axes]]:
    """A canvas with ``number`` panels, at most ``columns`` beside each other; sizes are in inches."""
    # Two panels of the usual width beside each other, at half a page's width, still have text of 6 points.
    wide = min(columns, number)
    high = -(-number // wide)
    canvas = Canvas(figsize=(max(width * wide, 3.6), height * high), layout="constrained")
    axes = list(np.ravel(canvas.subplots(high, wide, squeeze=False, **options)))
    for axis in axes[number:]:
        axis.remove()
    return canvas, axes[:number]


def label_width(names: Iterable[str]) -> float:
    """About how many inches the longest name is wide, in the usual size."""
    return 0.085 * max(map(len, names), default=0)


def legend_below(canvas: Canvas, axes: Sequence[Axes]) -> None:
    """Draw one legend for all panels, which names every line once; the canvas grows to hold it."""
    handles = dict(pair for axis in axes for pair in zip(*reversed(axis.get_legend_handles_labels()), strict=True))
    if not handles:
        return
    width, height = canvas.get_size_inches()
    entry = 0.5 + 0.85 * label_width(handles)
    columns = max(1, min(len(handles), int(max(width, 6.2) / entry)))
    canvas.set_size_inches(max(width, columns * entry), height + 0.22 * -(-len(handles) // columns))
    canvas.legend(list(handles.values()), list(handles), loc="outside lower center", ncols=columns, frameon=False)


def short_number(value: float, _position: float | None = None) -> str:
    """``20``, ``5k``, ``1.2M``: for ticks, since the usual labels of logarithmic axes are formulas."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


def heat_map(
    axis: Axes,
    values: np.ndarray,
    rows: Sequence[str],
    columns: Sequence[str],
    texts: Sequence[Sequence[str]],
    **how: Any,
) -> Any:
    """A matrix of colours with a text in each field; NaN stays white."""
    image = axis.imshow(values, aspect="auto", **how)
    axis.set_xticks(range(len(columns)), columns, rotation=35, ha="right", rotation_mode="anchor")
    axis.set_yticks(range(len(rows)), rows)
    axis.tick_params(length=0)
    for (row, column), value in np.ndenumerate(values):
        red, green, blue, _ = image.cmap(image.norm(value))
        dark = np.isfinite(value) and 0.299 * red + 0.587 * green + 0.114 * blue < 0.5
        colour = "white" if dark else "black"
        axis.text(column, row, texts[row][column], ha="center", va="center", color=colour, fontsize="small")
    return image


@contextmanager
def drawing_style() -> Iterator[None]:
    with style.context(Path(__file__).with_name("figures.mplstyle")), warnings.catch_warnings():
        # A title in letters that the font lacks is drawn with boxes; its numbers are no worse.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


def write(drawing: Drawing, folder: Path) -> Figure:
    """``<name>.svg``, ``.png`` and ``.csv``; without a date, so that equal numbers give equal files."""
    for suffix, metadata in ((".svg", dict.fromkeys(("Date", "Creator", "Format", "Type"))), (".png", {})):
        ground = {"transparent": True} if suffix == ".svg" else {}
        with new_file(folder / f"{drawing.figure.name}{suffix}") as temporary:
            drawing.canvas.savefig(temporary, format=suffix[1:], dpi=150, metadata=metadata, **ground)
            if suffix == ".svg":
                # For the page: its ink, coordinates to a hundredth of a point, and no breaks between tags.
                svg = printable(temporary.read_text(encoding="utf-8")).replace(INK, "currentColor")
                svg = re.sub(r"<[^<>]*>", lambda tag: re.sub(r"(\.\d\d)\d+", r"\1", tag[0]), svg)
                svg = re.sub(r">\s*\n\s*<", "><", svg)
                svg = svg.replace('<style type="text/css">', f'<style type="text/css">{_STYLE}', 1)
                temporary.write_text(svg, encoding="utf-8")
        # Everything is in its place now: the next file need not be laid out again.
        drawing.canvas.set_layout_engine("none")
    write_table(drawing.numbers, folder / f"{drawing.figure.name}.csv")
    return drawing.figure
