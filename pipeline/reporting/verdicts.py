"""Which differences of a table are real: paired tests, corrected together."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from pipeline.paired import Comparison, Resampled, holm, mean_difference
from pipeline.reporting.runs import Scored, StudyRuns

Key = TypeVar("Key", bound=Hashable)
Line = TypeVar("Line", bound=Hashable)


def judge(family: Mapping[Key, Resampled]) -> dict[Key, Comparison]:
    """The comparisons of one table, their p-values corrected over it (Holm 1979)."""
    found = {key: resampled.comparison() for key, resampled in family.items()}
    corrected = holm([comparison.p_value for comparison in found.values()])
    return {key: replace(found[key], p_value=p) for key, p in zip(found, corrected, strict=True)}


def compare_lines(
    runs: StudyRuns,
    groups: Mapping[tuple[Line, str], list[Scored]],
    references: Mapping[tuple[Line, str], list[Scored]],
    targets: Sequence[str],
) -> dict[tuple[Line, str | None], Comparison]:
    """Every line of a table on every target against what it is measured by, and the mean over ``targets`` (None).

    ``groups`` and ``references`` are by line and target; what is missing in either is not compared.
    """
    found: dict[tuple[Line, str | None], Resampled] = {}
    for (line, target), group in groups.items():
        resampled = runs.resampled(group, references.get((line, target), []))
        if resampled is not None:
            found[line, target] = resampled
    for line in dict.fromkeys(line for line, _ in groups):
        parts = [found[line, target] for target in targets if (line, target) in found]
        if len(parts) == len(targets) > 1:
            found[line, None] = mean_difference(parts)
    return judge(found)
