"""Which differences of a table are significant: one reading of its paired tests, corrected together."""

from collections.abc import Hashable, Iterable, Mapping, Sequence, Sized
from typing import TypeVar

from pipeline.reporting.entries import Line
from pipeline.reporting.runs import StudyRuns
from pipeline.stats.paired import Comparison, Resampled, mean_difference

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


def marks_note(against: str, family: Sized) -> str:
    """What the marks of a table with these comparisons mean, where the main table has said how they are tested."""
    if not family:
        return ""
    together = f"the {comparisons(family)} of this table together"
    return f"Marks: against {against}; tests and intervals as in the main table, for {together}."


def comparisons(family: Sized) -> str:
    return "1 comparison" if len(family) == 1 else f"{len(family)} comparisons" if family else ""
