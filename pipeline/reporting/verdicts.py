"""Which differences of a table are significant: one reading of its paired tests, corrected together."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

from pipeline.reporting.runs import Scored, StudyRuns
from pipeline.stats.paired import LEVEL, Comparison, Resampled, mean_difference

Key = TypeVar("Key", bound=Hashable)
Line = TypeVar("Line", bound=Hashable)


def judge(family: Mapping[Key, Resampled]) -> dict[Key, Comparison]:
    """The comparisons of one table, p-values and intervals corrected for how many there are."""
    return {key: resampled.comparison(len(family)) for key, resampled in family.items()}


def full_test_note(against: str, comparisons: int) -> tuple[str, ...]:
    """What marks and intervals say in a table with so many comparisons; nothing where there is none."""
    if not comparisons:
        return ()
    return (
        f"Against {against}: ↑ better, ↓ worse, → not significant. Marks, intervals and p-values are one reading of"
        " paired randomisation tests on the same dev rows over the seeds (for the accuracy of one seed: McNemar's), at"
        f" level {LEVEL} for the {_comparisons(comparisons)} of this table together (Bonferroni). A difference is"
        " better or worse exactly where its interval leaves out 0. The 95 % confidence intervals (CI) are simultaneous:"
        " for at least 95 of 100 draws of dev rows, every interval of the table holds the true difference between these"
        " models.",
    )


def short_test_note(against: str, comparisons: int) -> tuple[str, ...]:
    """The same for the tables after the main one."""
    if not comparisons:
        return ()
    together = f"the {_comparisons(comparisons)} of this table together"
    return (f"Marks: against {against}; tests and intervals as in the main table, for {together}.",)


def _comparisons(number: int) -> str:
    return "1 comparison" if number == 1 else f"{number} comparisons"


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
