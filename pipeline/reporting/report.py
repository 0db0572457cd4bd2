"""The results of a study, ready to be written as tables and as a page."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import pandas as pd

from pipeline.records.run_record import RunRecord
from pipeline.reporting.text import TEXTS, paragraphs
from pipeline.settings.study import Study
from pipeline.stats.paired import Verdict


@dataclass(frozen=True)
class Cell:
    """One field of a table."""

    text: str
    sort: float | str | None = None
    """Sort key; None: the text."""
    runs: tuple[str, ...] = ()
    """The runs from which the cell was computed."""
    verdict: Verdict | None = None
    detail: str = ""
    """Small print: interval, p-value, seeds."""
    best: bool = False
    """Whether it is the highest score of its column."""


@dataclass(frozen=True)
class Table:
    """A table whose columns, except the first, hold numbers."""

    name: str
    """File stem."""
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, name: str, rows: Sequence[Mapping[str, Cell]], **values: object) -> Self | None:
        """A table of cells by column, with title and notes of ``texts.toml``; None without rows."""
        return cls.named(name, rows[0], (tuple(row.values()) for row in rows), **values) if rows else None

    @classmethod
    def named(cls, name: str, columns: Iterable[str], rows: Iterable[tuple[Cell, ...]], **values: object) -> Self:
        """Like :meth:`of`, but several columns may have the same name, and there may be no rows."""
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
        """A figure with title and caption from ``texts.toml``, filled with ``values``."""
        texts = TEXTS["figures"][name]
        caption = " ".join(paragraphs(texts["caption"], **values))
        return cls(name.format(**values), texts["title"].format(**values), caption)


@dataclass(frozen=True)
class Report:
    study: Study
    backbone: str
    verdict: tuple[str, ...]
    """The study's findings in a few sentences."""
    summary: tuple[str, ...]
    """Other test results: a few sentences, some of them lists."""
    tables: tuple[Table, ...]
    """The main one first."""
    figures: tuple[Figure, ...]
    notes: tuple[str, ...]
    """What a reader needs to know to judge the tables."""
    missing: tuple[str, ...]
    """The cells without a run, with the reasons."""
    results: pd.DataFrame
    """The rows of ``results.csv``."""
    records: Mapping[str, RunRecord]
    """Every finished run that a cell may name."""
    curves: Mapping[str, pd.DataFrame]
    """``curve.csv`` of those runs."""
