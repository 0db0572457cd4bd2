"""The results of a study, ready to be written as tables and as a page, and the texts that they are made of."""

import re
import statistics
from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import pandas as pd

from pipeline.records.run_record import RunRecord
from pipeline.settings.study import Study
from pipeline.stats.paired import LEVEL, Comparison, Verdict
from pipeline.system.reading import read_toml

MISSING = "-"
CONFIDENCE = "95 % CI "
MOST_NAMED = 3
"""The most items that a sentence names; beyond that, it gives their number."""
TEXTS = read_toml(Path(__file__).with_name("texts.toml"))


def paragraphs(text: str, **values: object) -> tuple[str, ...]:
    """The paragraphs of a text, one line each, filled with ``values``; leaves out those that name an empty value."""
    lines = (" ".join(paragraph.split()) for paragraph in text.split("\n\n"))
    return tuple(line.format(**values) for line in lines if all(values[name] for name in re.findall(r"{(\w+)", line)))


def score_text(values: Sequence[float], planned: int | None = None) -> str:
    """``0.512 ± 0.004``: mean and sample standard deviation over runs, with a note if runs are missing."""
    if not values:
        return MISSING
    spread = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
    fewer = f" ({len(values)} of {planned} runs)" if planned is not None and len(values) < planned else ""
    return f"{statistics.mean(values):.3f}{spread}{fewer}"


def number(value: float | None) -> str:
    """``0.512``, or ``-`` for None."""
    return MISSING if value is None else f"{value:.3f}"


def count(value: float | None) -> str:
    """``1,234,567``."""
    return MISSING if value is None else f"{value:,.0f}"


def points(difference: float, *, sign: bool = True) -> str:
    """A difference in hundredths of the metric: ``+1.3``, ``+0.04``, ``0.0``."""
    value = 100 * difference
    if abs(value) < 1e-9:
        return "0.0"
    # A value other than 0 must not read as 0: the sign of an interval's end shows whether it excludes 0.
    rounded = f"{value:+.1f}" if round(value, 1) else f"{value:+.1g}"
    return rounded if sign else rounded.removeprefix("+")


def interval_text(comparison: Comparison, study: Study | None = None) -> str:
    """``95 % CI 0.4 to 2.1`` in points; ends in ``, one seed`` if it covers one seed of a ``study`` with several."""
    low, high = comparison.interval
    fewer = ", one seed" if study is not None and comparison.seeds == 1 < len(study.seeds) else ""
    return f"{CONFIDENCE}{points(low, sign=False)} to {points(high, sign=False)}{fewer}"


def amount_text(comparison: Comparison, study: Study) -> str:
    """``1.3 points (95 % CI 0.4 to 2.1)``; for a loss, amount and interval of the reversed test."""
    amount = comparison if comparison.difference >= 0 else comparison.reversed()
    return f"{points(amount.difference, sign=False)} points ({interval_text(amount, study)})"


def amounts(compared: Mapping[str, Comparison], study: Study) -> list[str]:
    """``a (+1.3 points, 95 % CI 0.4 to 2.1)``, ``b (+0.9, 0.1 to 1.7)``: only the first has units."""
    texts: list[str] = []
    for name, comparison in compared.items():
        difference, interval = points(comparison.difference), interval_text(comparison, study)
        if texts:
            texts.append(f"{name} ({difference}, {interval.removeprefix(CONFIDENCE)})")
        else:
            texts.append(f"{name} ({difference} points, {interval})")
    return texts


def comparison_text(comparison: Comparison, against: str) -> str:
    """``+1.3 points against full fine-tuning, 95 % CI 0.4 to 2.1, p = 0.003``."""
    p_value = comparison.p_value
    # Rounding must not raise a p-value below the level to the level.
    below = 0.001 if p_value < 0.001 else LEVEL if p_value < LEVEL <= round(p_value, 3) else None
    p_text = f"p = {p_value:.3f}" if below is None else f"p < {below:.3f}"
    return f"{points(comparison.difference)} points against {against}, {interval_text(comparison)}, {p_text}"


def detectable_text(tests: Sequence[Comparison]) -> str:
    """``Four times in five, they find a true difference of 1.9 to 2.4 points ....``; empty if systems answer alike."""
    sizes = [test.detectable for test in tests if test.detectable]
    if not sizes:
        return ""
    ends = dict.fromkeys(points(size, sign=False) for size in (min(sizes), max(sizes)))
    return (
        f"A true difference of {' to '.join(ends)} points would be found four times in five, a smaller one less often."
    )


def percent(share: float) -> str:
    """``24 %``, ``2.2 %``, ``0.01 %``, with two significant digits."""
    value = 100 * share
    if value >= 10 or value == 0:
        return f"{value:.0f} %"
    return f"{value:.1f} %" if value >= 0.95 else f"{value:.2g} %"


def listed(items: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}" if items else ""


def where_text(study: Study, targets: Sequence[str] | None = None) -> str:
    """``sst``, ``the mean of sst and sts``, ``the mean of 9 targets (one seed)``.

    Intervals from one seed do not cover other seeds, so a sentence with a verdict must say so; in a study of several
    seeds, :func:`interval_text` does.
    """
    targets, seeds = targets or study.targets, " (one seed)" if len(study.seeds) == 1 else ""
    if len(targets) == 1:
        return targets[0] + seeds
    return f"the mean of {listed(targets) if len(targets) <= MOST_NAMED else f'{len(targets)} targets'}{seeds}"


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def marks_note(against: str, family: Sized) -> str:
    """The meaning of the marks in a table with these comparisons; the main table explains the tests."""
    if not family:
        return ""
    together = f"the {comparisons(family)} of this table together"
    return f"Marks: against {against}; tests and intervals as in the main table, for {together}."


def comparisons(family: Sized) -> str:
    return "1 comparison" if len(family) == 1 else f"{len(family)} comparisons" if family else ""


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
