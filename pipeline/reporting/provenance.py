"""A run as the page shows it: its identity, result, cost and provenance."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from pipeline.records.ledger import RunRecord, SourceRun

Pairs = list[tuple[str, str]]


@dataclass(frozen=True)
class Point:
    """An epoch of a curve, in the picture's pixels."""

    x: float
    y: float
    epoch: str
    score: float
    kept: bool


@dataclass(frozen=True)
class Plot:
    """The dev score by epoch."""

    points: tuple[Point, ...]
    low: float
    high: float
    width: int = 360
    height: int = 140
    left: int = 48
    right: int = 350
    top: int = 10
    bottom: int = 106


@dataclass(frozen=True)
class RunView:
    run: str
    label: str
    score: str
    sources: tuple[SourceRun, ...]
    groups: tuple[tuple[str, Pairs], ...]
    """Titles with names and values; empty groups are left out."""
    columns: tuple[str, ...]
    """Of the curve, which has a row an evaluation; empty without a curve."""
    rows: tuple[tuple[str, ...], ...]
    plot: Plot | None


def run_view(record: RunRecord, curve: pd.DataFrame | None, method: str) -> RunView:
    """What the page shows of a run that stands in the row ``method``."""
    curve = pd.DataFrame() if curve is None else curve
    identity = {name: value for name, value in record.identity.items() if name not in ("tasks", "sources")}
    for task in record.trained_on:
        identity[task] = {key: value for key, value in record.described(task).items() if key != "recipe"}
    taken = "start candidate, run" if record.kind == "adapter" else "source, run"
    identity |= {f"{taken} {source.run}": source.digest for source in record.sources}
    made_with = dict(record.provenance)
    if made_with.pop("dirty", False):
        # The commit alone would not say what ran.
        made_with["commit"] = f"{made_with.get('commit')}, with changes that were not committed"
    made_with |= {"finished": record.finished_at} | ({"artifact": record.artifact} if record.artifact else {})
    groups = {
        "Result": _result(record),
        "Cost": _pairs(record.cost.model_dump()),
        "Unchanged, sha256 after training": _pairs(record.unchanged),
        "Made with": _pairs(made_with),
        "Recipe": _pairs(record.recipe.flat()),
        "Identity": _pairs(identity),
    }
    return RunView(
        run=record.run,
        label=f"{method}, {' + '.join(record.trained_on)}, {record.own.train_rows:,} rows, seed {record.seed}",
        score=f"{record.metric} {record.dev:.4f}",
        sources=record.sources,
        groups=tuple((title, pairs) for title, pairs in groups.items() if pairs),
        columns=tuple(str(column).replace("_", " ") for column in curve.columns) if len(curve) else (),
        rows=tuple(
            tuple(
                _text(value, 4 if name in ("loss", "dev") else None)
                for name, value in zip(curve.columns, row, strict=True)
            )
            for row in curve.itertuples(index=False, name=None)
        ),
        plot=_plot(curve, record.best_epoch),
    )


def number_text(value: float, digits: int | None = None) -> str:
    """A number with as many digits as a reader has use for: ``1,234``, ``12.3``, ``0.0123``; ``-`` for none."""
    if isinstance(value, int):
        return f"{value:,}"
    if not math.isfinite(value):
        return "-"
    if digits is not None:
        return f"{value:.{digits}f}"
    if value == int(value) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.4g}"


def _result(record: RunRecord) -> Pairs:
    pairs = [("kept epoch", str(record.best_epoch))]
    if record.anchor is not None:
        pairs.append(("started from the adapter of", record.anchor))
    for task, score in record.scores.items():
        before = "" if score.before is None else f", before training {score.before:.4f}"
        pairs.append((f"{task}, dev {score.metric}", f"{score.dev:.4f}{before}"))
    for task in record.trained_on:
        rows = record.scores[task].model_dump(include={"train_rows", "rows", "dev_in_train"})
        pairs += [(f"{task}, {name.replace('_', ' ')}", f"{count:,}") for name, count in rows.items()]
    return pairs


def _pairs(values: Mapping[str, Any]) -> Pairs:
    return [(name, _text(value)) for name, value in _flat(values)]


def _flat(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        name = f"{before}{key}".replace("_", " ")
        if isinstance(value, Mapping):
            yield from _flat(value, f"{name}, ")
        else:
            yield name, value


def _text(value: Any, digits: int | None = None) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value)) or "-"
    return number_text(value, digits) if isinstance(value, int | float) else str(value)


def _plot(curve: pd.DataFrame, best_epoch: int) -> Plot | None:
    """None where a line would have fewer than two points."""
    if not {"epoch", "dev"} <= set(curve.columns):
        return None
    scores = curve[["epoch", "dev"]].dropna().astype(float)
    if len(scores) < 2:
        return None
    epochs, values = scores["epoch"], scores["dev"]
    first, low = epochs.min(), values.min()
    # A flat line runs along the bottom instead of dividing by nothing.
    length, spread = (epochs.max() - first) or 1.0, (values.max() - low) or 1.0
    points = tuple(
        Point(
            Plot.left + 8 + (epoch - first) / length * (Plot.right - Plot.left - 16),
            Plot.bottom - 4 - (value - low) / spread * (Plot.bottom - Plot.top - 8),
            f"{epoch:g}",
            value,
            epoch == best_epoch,
        )
        for epoch, value in zip(epochs, values, strict=True)
    )
    return Plot(points, float(low), float(values.max()))
