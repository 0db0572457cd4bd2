"""Report: what a study came to, ready to be written as tables and as a page."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Self, TypeVar

import pandas as pd

from pipeline.records.ledger import RunRecord
from pipeline.settings.study import Study
from pipeline.stats.paired import Verdict

Item = TypeVar("Item")


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

    @classmethod
    def of(
        cls,
        name: str,
        title: str,
        items: Iterable[Item],
        columns: Mapping[str, Callable[[Item], Cell]],
        notes: tuple[str, ...] = (),
    ) -> Self:
        """A row an item; each column says how it shows one."""
        rows = tuple(tuple(show(item) for show in columns.values()) for item in items)
        return cls(name, title, tuple(columns), rows, notes)


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
