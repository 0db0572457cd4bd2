"""The results of a study, ready to be written: tables and their cells, figures, and the texts of both."""

import math
import re
import statistics
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self, TypeVar

import pandas as pd

from pipeline.records.run_record import RunRecord
from pipeline.records.studies import Line
from pipeline.reporting.runs import Scored, StudyRuns, mean_of, runs_of
from pipeline.settings.study import Study
from pipeline.stats.paired import LEVEL, Comparison, Difference, Verdict
from pipeline.system.reading import read_toml

MISSING = "-"
MARKS: dict[str | None, str] = {"better": "↑", "worse": "↓", "not significant": "→", None: ""}
CONFIDENCE = "95 % CI "
_HASH = re.compile(r"[0-9a-f]{40,}")
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


def amounts(compared: Mapping[str, Comparison], study: Study) -> list[str]:
    """``a (+1.3 points, 95 % CI 0.4 to 2.1)``, ``b (+0.9, 0.1 to 1.7)``: only the first has units."""
    texts: list[str] = []
    for name, comparison in compared.items():
        interval, unit = interval_text(comparison, study), " points"
        if texts:
            interval, unit = interval.removeprefix(CONFIDENCE), ""
        texts.append(f"{name} ({points(comparison.difference)}{unit}, {interval})")
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
    ends = " to ".join(dict.fromkeys(points(size, sign=False) for size in (min(sizes), max(sizes))))
    return f"A true difference of {ends} points would be found four times in five, a smaller one less often."


def value_text(value: Any, digits: int | None = None) -> str:
    """A value in words; a number with as many digits as a reader needs: ``1,234``, ``12.3``, ``0.0123``."""
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case list() | tuple():
            return ", ".join(map(value_text, value)) or "-"
        case int():
            return f"{value:,}"
        case float() if not math.isfinite(value):
            return "-"
        case float() if digits is not None:
            return f"{value:.{digits}f}"
        case float() if value == int(value) or abs(value) >= 100:
            return f"{value:,.0f}"
        case float():
            return f"{value:.1f}" if abs(value) >= 10 else f"{value:.4g}"
    # run.json has the whole hash.
    return value[:12] if isinstance(value, str) and _HASH.fullmatch(value) else str(value)


def listed(items: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}" if items else ""


def counted(names: Iterable[str]) -> str:
    """One name, or several with how often they are there: ``a (4), b (1)``."""
    counts = Counter(names)
    return ", ".join(f"{name} ({n})" if len(counts) > 1 else name for name, n in counts.most_common())


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
    warning: str = ""
    """What makes the number doubtful, in a few words."""


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
    advice: tuple[str, ...]
    """What to use, and why; empty if no two methods can be compared."""
    cautions: tuple[str, ...]
    """What may change the advice."""
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


Key = TypeVar("Key", bound=Hashable)
Place = tuple[Line | str, int | None]
"""A line, or a row over all its sources, with its point on the low-resource curve (None: the main table)."""
Verdicts = Mapping[tuple[Place, str | None], Comparison]
"""Comparisons by place and target; target None is the mean over all targets."""


def line_cell(runs: StudyRuns, line: Line, used: tuple[str, ...] = ()) -> Cell:
    return Cell(runs.title(line), str(line), used)


def text_cell(text: str) -> Cell:
    return Cell(text or MISSING, text)


def count_cell(value: float | None, used: tuple[str, ...] = ()) -> Cell:
    return Cell(count(value), value, used)


def share_cell(part: float | None, whole: int | None, among: int = 1) -> Cell:
    """``part`` as a share of ``whole``, divided by ``among``: ``24 %``, ``2.2 %``, ``0.01 %``."""
    if part is None or not whole:
        return Cell(MISSING)
    share = part / among / whole
    value = 100 * share
    form = ".0f" if value >= 10 or value == 0 else ".1f" if value >= 0.95 else ".2g"
    return Cell(f"{value:{form}} %", share)


def scores_cell(values: Sequence[float], used: tuple[str, ...] = (), detail: str = "") -> Cell:
    """Mean and standard deviation of ``values``."""
    return Cell(score_text(values), mean_of(values), used, detail=detail)


def effort_cells(runs: StudyRuns, row: str, group: Sequence[Scored]) -> dict[str, Cell]:
    """Runs per target that a row is chosen from, if any row tunes; seconds of a run, alone and with its sources."""
    tuned = any(scored.trials for scored in runs.scored)
    by_run = {scored.record.run: scored.seconds for scored in group}  # including its trials
    return {
        **({"trials": count_cell(runs.study.trials_on_target(row))} if tuned else {}),
        "seconds": count_cell(mean_of(by_run.values())),
        "seconds with sources": count_cell(mean_of(scored.total_seconds for scored in group)),
    }


def group_cell(group: Sequence[Scored], detail: str = "") -> Cell:
    """Mean and standard deviation of the scores of ``group``."""
    return scores_cell([scored.value for scored in group], runs_of(group), detail)


def judged(cell: Cell, comparison: Comparison | None, against: str) -> Cell:
    """The cell with the verdict added, and the test in its small print."""
    if comparison is None:
        return cell
    test = comparison_text(comparison, against)
    return replace(cell, verdict=comparison.verdict, detail=f"{cell.detail}; {test}" if cell.detail else test)


def difference_cell(
    difference: float | None,
    used: tuple[str, ...] = (),
    comparison: Comparison | None = None,
    against: str = "",
    untested: str = "",
) -> Cell:
    """A difference in points with its verdict; without a comparison, ``untested`` is the small print."""
    if difference is None:
        return Cell(MISSING)
    detail = untested if comparison is None else ""
    return judged(Cell(points(difference), difference, used, detail=detail), comparison, against)


def score_cells(runs: StudyRuns, place: Place, targets: Sequence[str], verdicts: Verdicts) -> dict[str, Cell]:
    """Scores of a place on the targets, first their mean if there are several; notes runs that are missing."""
    line, rows = place
    cells, against = dict[str, Cell](), runs.title(runs.reference)
    there = whole = 0
    for target in targets:
        group, entries = runs.cell(line, target, rows), runs.entries(line, target, rows)
        there, whole = there + len(group), whole + len(entries)
        values, test = [scored.value for scored in group], verdicts.get((place, target))
        details = [] if test is None else [comparison_text(test, against)]
        if len(entries) > 1:
            details.append(f"{len(group)} of {len(entries)} runs")
        for entry in (entry for entry in entries if entry.error is not None):
            source = "" if entry.line == line else f"{entry.method} "
            details.append(f"{source}seed {entry.seed} failed: {entry.error}")
        cells[runs.column(target)] = Cell(
            score_text(values, len(entries)),
            mean_of(values),
            runs_of(group),
            test.verdict if test else None,
            "; ".join(details),
            warning="still rising" if runs.is_rising(group) else "",
        )
    if len(targets) > 1:
        means = [cell.sort for cell in cells.values() if isinstance(cell.sort, float)]
        mean = statistics.mean(means) if len(means) == len(targets) else None
        used = dict.fromkeys(run for cell in cells.values() for run in cell.runs) if mean is not None else ()
        fewer = f" ({there} of {whole} runs)" if mean is not None and there < whole else ""
        cell = Cell(f"{number(mean)}{fewer}", mean, tuple(used))
        cells = {"mean": judged(cell, verdicts.get((place, None)), against), **cells}
    return cells


def with_best(rows: Sequence[dict[str, Cell]], columns: Sequence[str]) -> list[dict[str, Cell]]:
    """Mark the highest score in every column."""
    highest = {}
    for name in columns if len(rows) > 1 else ():
        if scores := [score for row in rows if isinstance(score := row[name].sort, float)]:
            highest[name] = max(scores)
    return [
        row | {name: replace(row[name], best=True) for name, score in highest.items() if row[name].sort == score}
        for row in rows
    ]


def judge(family: Mapping[Key, Difference | None], looks: int) -> dict[Key, Comparison]:
    """The comparisons of one table, corrected for their number; leaves out what could not be paired.

    Args:
        looks: how often the study's results were looked at; the tests are corrected for this too.
    """
    known = {key: difference for key, difference in family.items() if difference is not None}
    return {key: difference.comparison(len(known) * looks) for key, difference in known.items()}


def against_reference(runs: StudyRuns, places: Iterable[Place], targets: Sequence[str]) -> Verdicts:
    """Every place against the study's reference on each target, and on the mean if the place has all targets."""
    family: dict[tuple[Place, str | None], Difference | None] = {}
    for line, rows in places:
        if str(line) != runs.study.reference:
            parts, mean = runs.differences(line, runs.reference, targets, rows)
            family |= {((line, rows), target): difference for target, difference in parts.items()}
            family |= {((line, rows), None): mean} if len(targets) > 1 else {}
    return judge(family, runs.study.looks)
