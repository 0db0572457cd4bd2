"""Which differences of a table are significant: one reading of its paired tests, corrected together."""

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

from pipeline.reporting.entries import Line
from pipeline.reporting.runs import StudyRuns
from pipeline.stats.paired import LEVEL, Comparison, Resampled, mean_difference

Key = TypeVar("Key", bound=Hashable)
Place = tuple[Line | str, int | None]
"""A line, or a row over all its sources, at a point of the low-resource curve; None: in the main table."""
Verdicts = Mapping[tuple[Place, str | None], Comparison]
"""By place and target; None for the mean over all targets."""


def judge(family: Mapping[Key, Resampled | None]) -> dict[Key, Comparison]:
    """The comparisons of one table, corrected for how many there are; what could not be paired is left out."""
    known = {key: resampled for key, resampled in family.items() if resampled is not None}
    return {key: resampled.comparison(len(known)) for key, resampled in known.items()}


def against_reference(runs: StudyRuns, places: Iterable[Place], targets: Sequence[str]) -> Verdicts:
    """Every place against the study's reference on each target, and on the mean where it has them all."""
    family: dict[tuple[Place, str | None], Resampled | None] = {}
    for place in places:
        line, rows = place
        if str(line) == runs.study.reference:
            continue
        parts = {t: runs.resampled(runs.cell(line, t, rows), runs.cell(runs.reference, t, rows), t) for t in targets}
        family |= {(place, target): resampled for target, resampled in parts.items()}
        known = [resampled for resampled in parts.values() if resampled is not None]
        if len(known) == len(targets) > 1:
            family[place, None] = mean_difference(known)
    return judge(family)


def full_test_note(against: str, family: Collection[object]) -> tuple[str, ...]:
    """What marks and intervals mean in a table with these comparisons; nothing where there is none."""
    if not family:
        return ()
    return (
        f"Against {against}: ↑ better, ↓ worse, → not significant. Marks, intervals and p-values come from paired"
        " randomisation tests on the same dev rows over the seeds (McNemar's test for the accuracy of one seed), at"
        f" level {LEVEL} for the {_comparisons(family)} of this table together (Bonferroni). A difference is"
        " better or worse exactly where its interval excludes 0. The 95 % confidence intervals (CI) are simultaneous:"
        " for at least 95 of 100 draws of dev rows, every interval of the table holds the true difference between these"
        " models.",
    )


def short_test_note(against: str, family: Collection[object]) -> tuple[str, ...]:
    """The same for the tables after the main one."""
    if not family:
        return ()
    together = f"the {_comparisons(family)} of this table together"
    return (f"Marks: against {against}; tests and intervals as in the main table, for {together}.",)


def _comparisons(family: Collection[object]) -> str:
    return "1 comparison" if len(family) == 1 else f"{len(family)} comparisons"
