"""Report: what a study came to, ready to be written as tables and as a page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from pipeline.records.ledger import RunRecord
from pipeline.settings.study import Study
from pipeline.stats.paired import Verdict

__all__ = ["Cell", "Figure", "Report", "Table", "Verdict"]


@dataclass(frozen=True)
class Cell:
    """One field of a table."""

    text: str
    sort: float | str | None = None
    """What a sorted table orders by; None: the text."""
    runs: tuple[str, ...] = ()
    """The runs the cell was computed from."""
    verdict: Verdict | None = None
    detail: str = ""
    """Small print: interval, p, seeds."""


@dataclass(frozen=True)
class Table:
    """Columns from the second on hold numbers."""

    name: str
    """File stem."""
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Figure:
    """``figures/<name>.svg``, ``.png`` and ``.csv``, the last with every number in it."""

    name: str
    title: str
    caption: str


@dataclass(frozen=True)
class Report:
    study: Study
    backbone: str
    summary: tuple[str, ...]
    """Plain sentences, computed from the tests."""
    tables: tuple[Table, ...]
    """The main one first."""
    figures: tuple[Figure, ...]
    notes: tuple[str, ...]
    """What a reader must know to trust or doubt the tables."""
    missing: tuple[str, ...]
    """The cells without a run, each with the reason."""
    results: pd.DataFrame
    """The rows of ``results.csv``."""
    records: Mapping[str, RunRecord]
    """Every finished run that a cell may name."""
    curves: Mapping[str, pd.DataFrame]
    """``curve.csv`` of each of them."""
