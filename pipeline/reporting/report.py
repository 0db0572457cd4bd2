"""Report: what a study came to, ready to be written as tables and as a page."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Self, TypeVar

import pandas as pd

from pipeline.records.ledger import RunRecord
from pipeline.reporting.text import TEXTS, paragraphs
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
        items: Iterable[Item],
        columns: Mapping[str, Callable[[Item], Cell]],
        **values: object,
    ) -> Self:
        """A row an item; each column says how it shows one. Title and notes are those of the name, with ``values``."""
        rows = (tuple(show(item) for show in columns.values()) for item in items)
        return cls.named(name, columns, rows, **values)

    @classmethod
    def named(cls, name: str, columns: Iterable[str], rows: Iterable[tuple[Cell, ...]], **values: object) -> Self:
        """With title and notes of ``texts.toml``."""
        texts = TEXTS["tables"][name]
        return cls(name, texts["title"], tuple(columns), tuple(rows), paragraphs(texts["notes"], **values))


@dataclass(frozen=True)
class Figure:
    """``figures/<name>.svg``, ``.png`` and ``.csv``, the last with every number in it."""

    name: str
    title: str
    caption: str

    @classmethod
    def of(cls, name: str, **values: object) -> Self:
        """Name, title and caption of ``texts.toml`` with ``values``."""
        texts = TEXTS["figures"][name]
        caption = " ".join(paragraphs(texts["caption"], **values))
        return cls(name.format(**values), texts["title"].format(**values), caption)


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
