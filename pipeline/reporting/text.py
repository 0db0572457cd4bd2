"""Numbers as a reader of tables and sentences says them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from pipeline.paired import Comparison

MISSING = "-"


def score_text(values: Sequence[float], planned: int | None = None) -> str:
    """``0.512 ± 0.004``, mean and sample deviation over runs; of fewer runs than planned it says so."""
    if not values:
        return MISSING
    spread = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
    fewer = f" ({len(values)} of {planned} runs)" if planned is not None and len(values) < planned else ""
    return f"{statistics.mean(values):.3f}{spread}{fewer}"


def number(value: float | None, digits: int = 3) -> str:
    """``0.512``, or ``-`` where there is none."""
    return MISSING if value is None else f"{value:.{digits}f}"


def count(value: float | None) -> str:
    """``1,234,567``."""
    return MISSING if value is None else f"{value:,.0f}"


def points(difference: float, *, sign: bool = True) -> str:
    """A difference in hundredths of the metric: ``+1.3``."""
    # Adding 0 brings -0.0 to 0.0, which has no sign to show.
    rounded = round(100 * difference, 1) + 0.0
    return f"{rounded:+.1f}" if sign and rounded else f"{rounded:.1f}"


def interval_text(comparison: Comparison) -> str:
    """``95 % CI 0.4 to 2.1``, in points."""
    if comparison.interval is None:
        return "no interval"
    low, high = comparison.interval
    return f"95 % CI {points(low, sign=False)} to {points(high, sign=False)}"


def comparison_text(comparison: Comparison, against: str) -> str:
    """``+1.3 points against full fine-tuning, 95 % CI 0.4 to 2.1, p = 0.003``."""
    shown = f"p = {comparison.p_value:.3f}" if comparison.p_value >= 0.001 else "p < 0.001"
    return f"{points(comparison.difference)} points against {against}, {interval_text(comparison)}, {shown}"


def percent(share: float) -> str:
    """``24 %``, ``2.2 %``, ``0.01 %``: two digits that say something."""
    value = 100 * share
    if value >= 10 or value == 0:
        return f"{value:.0f} %"
    return f"{value:.1f} %" if value >= 0.95 else f"{value:.2g} %"


def backbone_text(name: str) -> str:
    """A Hub id, or the folder's own name: where it stands on this machine says nothing about it."""
    return Path(name).name if Path(name).is_absolute() else name


def listed(items: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}" if items else ""
