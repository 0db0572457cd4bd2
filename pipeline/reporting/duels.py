"""Each fusion against the best row without it of every kind, on all targets together."""

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from pipeline.records.studies import Line
from pipeline.reporting.cells import judge
from pipeline.reporting.runs import StudyRuns, once
from pipeline.settings.kinds import KINDS
from pipeline.settings.parts import BOTTLENECKS
from pipeline.settings.study import Study
from pipeline.stats.paired import Comparison, Difference, mean_difference

CLOSE = 0.01
"""Where two rows differ by less on the validation rows, either might have been selected."""


def _is_alone(study: Study, name: str) -> bool:
    """Whether nothing that a row trains or joins has read another task."""
    row = study.row(name)
    if row.kind.joins(row) or row.backbone is not None:
        return False
    own = ((each, target) for target in study.targets_of(name) for each in (name, *study.bases_on(name, target)))
    recipes = (study.recipe_for(*each, trial=trial) for each in own for trial in study.row(each[0]).trials)
    return not any(recipe.extra for recipe in recipes) and all(_is_alone(study, each) for each in row.members)


def _is_one_adapter(study: Study, name: str) -> bool:
    """Whether a row trains adapters of the kind that a fusion mixes: bottlenecks, fresh or warm-started."""
    row, targets = study.row(name), study.targets_of(name)
    if row.method != "adapter":
        return False
    recipes = (study.recipe_for(name, target, trial=trial) for target in targets for trial in row.trials)
    return all(recipe.adapter.kind in BOTTLENECKS for recipe in recipes)


def holds_fusion(study: Study, name: str) -> bool:
    """Whether a row is a fusion, or an ensemble of which one member is."""
    row = study.row(name)
    return row.method == "fusion" or any(holds_fusion(study, member) for member in row.members)


OPPONENTS: dict[str, Callable[[Study, str], bool]] = {
    "the target alone": _is_alone,
    "sequential fine-tuning": lambda study, name: KINDS[study.row(name).method].is_by_source,
    "one adapter": _is_one_adapter,
    "the best row without fusion": lambda study, name: True,
}
"""Kinds of rows without fusion. The best row of a kind stands for it, on each target its own."""


@dataclass(frozen=True)
class Duel:
    """A row of fusion against the best row of one kind on each target."""

    line: Line
    ours: dict[str, Line]
    """By target: of the line and its variants the one with the best mean over seeds on the validation rows."""
    kind: str
    best: dict[str, Line]
    """By target: of the lines of the kind the one with the best mean over seeds on the validation rows."""
    trials: dict[str, tuple[int, int]]
    """By target: how many runs a seed each side was chosen from."""
    parts: dict[str, Difference]
    """By target, over the seeds of both."""
    is_chosen_on_scores: bool = False
    """Whether a side was chosen among several lines by scores on the rows that are compared."""
    comparison: Comparison | None = None
    """The test of the mean over the targets; None if the sides were chosen by what is compared, or lack seeds."""

    @property
    def unequal_trials(self) -> str:
        """How many trials each side had, where it is not as many; else empty."""
        if all(ours == theirs for ours, theirs in self.trials.values()):
            return ""
        ours, theirs = ("/".join(map(str, sorted({*side}))) for side in zip(*self.trials.values(), strict=True))
        return f"{ours} against {theirs} of {self.kind}"


def own_fusions(study: Study) -> list[str]:
    """The rows of fusion that are no variants of another, in the study's order."""
    rows = {name: study.row(name) for name in study.methods}
    return [name for name, row in rows.items() if row.method == "fusion" and row.variant_of is None]


@once
def leading_fusion(runs: StudyRuns) -> Line | None:
    """The fusion that the study asks about: its first row of fusion that has every target and is no variant."""
    fusions = (line for line in runs.lines if line.row in own_fusions(runs.study))
    return next((line for line in fusions if len(runs.groups(line)) == len(runs.study.targets)), None)


@once
def duels(runs: StudyRuns) -> list[Duel]:
    """Every row of fusion that has all targets against every kind of rows that has them.

    The comparisons of the leading fusion are corrected for one another alone, so that the study's question does not
    grow harder with every other fusion beside it; those of the others are a second family.
    """
    study = runs.study
    fusions = [line for line in runs.lines if study.row(line.row).method == "fusion"]
    result = []
    for line in fusions:
        variants = [other for other in fusions if study.row(other.row).variant_of == line.row]
        own = [line, *variants]
        ours = _best_by_target(runs, own)
        for kind in OPPONENTS:
            those = _lines_of(runs, kind)
            best = _best_by_target(runs, those)
            parts = {
                target: runs.difference(runs.cell(ours[target], target), runs.cell(other, target), target)
                for target, other in best.items()
                if target in ours
            }
            known = {target: difference for target, difference in parts.items() if difference is not None}
            if len(known) == len(study.targets):
                trials = {target: (_trials(runs, own, target), _trials(runs, those, target)) for target in known}
                chosen = any(_is_chosen_on_scores(runs, side, target) for side in (own, those) for target in known)
                result.append(Duel(line, ours, kind, best, trials, known, chosen))
    leads = {(duel.line, duel.kind): duel.line == leading_fusion(runs) for duel in result}
    tested = [duel for duel in result if not duel.is_chosen_on_scores]
    means = {(duel.line, duel.kind): _mean(runs, duel) for duel in tested}
    verdicts: dict[tuple[Line, str], Comparison] = {}
    for family in (True, False):
        verdicts |= judge({key: mean for key, mean in means.items() if leads[key] is family}, runs.study.looks)
    return [replace(duel, comparison=verdicts.get((duel.line, duel.kind))) for duel in result]


def _lines_of(runs: StudyRuns, kind: str) -> list[Line]:
    lines = (line for line in runs.lines if not holds_fusion(runs.study, line.row))
    return [line for line in lines if OPPONENTS[kind](runs.study, line.row)]


def _mean(runs: StudyRuns, duel: Duel) -> Difference | None:
    both = [[scored for side in (duel.ours, duel.best) for scored in runs.cell(side[t], t)] for t in duel.parts]
    return mean_difference([*duel.parts.values()], runs.shared(both))


def leading_duels(runs: StudyRuns) -> dict[str, Comparison]:
    """The leading fusion's comparisons on the mean of the targets, by kind."""
    return {duel.kind: duel.comparison for duel in duels_of_leading(runs) if duel.comparison is not None}


def duels_of_leading(runs: StudyRuns) -> list[Duel]:
    """The leading fusion against every kind of rows, tested or not; empty where no fusion leads."""
    return [duel for duel in duels(runs) if duel.line == leading_fusion(runs)]


def _candidates(runs: StudyRuns, lines: list[Line], target: str) -> list[Line]:
    """Those of ``lines`` that have the most seeds on a target: the mean of fewer is the best more easily by chance."""
    seeds = {line: len(runs.cell(line, target)) for line in lines}
    most = max(seeds.values(), default=0)
    return [line for line, count in seeds.items() if count == most > 0]


def _dev_scores(runs: StudyRuns, lines: list[Line], target: str) -> dict[Line, float]:
    """The mean on the validation rows of each candidate."""
    return {
        line: statistics.mean(scored.score.dev for scored in runs.cell(line, target))
        for line in _candidates(runs, lines, target)
    }


def _best_by_target(runs: StudyRuns, lines: list[Line]) -> dict[str, Line]:
    """The best of ``lines`` on the validation rows, for each target that one of them has.

    Of equal ones the first row, and of its sources the first by name: their order depends on the other targets.
    """
    rows = list(dict.fromkeys(line.row for line in lines))
    ordered = sorted(lines, key=lambda line: (rows.index(line.row), line.source))
    by_target = {target: _dev_scores(runs, ordered, target) for target in runs.study.targets}
    return {target: max(scores, key=lambda line: scores[line]) for target, scores in by_target.items() if scores}


def _trials(runs: StudyRuns, lines: list[Line], target: str) -> int:
    """How many runs a seed the best of ``lines`` is chosen from on a target: what several take counts once."""
    tried: dict[Line, int] = {}
    for line in _candidates(runs, lines, target):
        by_row = runs.study.trials_by_row(line.row, target)
        tried |= {line if row == line.row else Line(row): count for row, count in by_row.items()}
    return sum(tried.values())


def _is_chosen_on_scores(runs: StudyRuns, lines: list[Line], target: str) -> bool:
    """Whether the best of ``lines`` is chosen, among several, by scores on the rows that the tables show."""
    candidates = _candidates(runs, lines, target)
    return len(candidates) > 1 and any(s.score.test is None for line in candidates for s in runs.cell(line, target))


@dataclass(frozen=True)
class Alternative:
    """A row that was nearly selected for one side of a duel on one target."""

    target: str
    selected: Line
    other: Line
    dev: tuple[float, float]
    """The scores of the selected row and of the other on the validation rows."""
    duel: Duel
    """The duel with the other row there; its comparison is that of the row that was selected."""


@dataclass(frozen=True)
class CloseCall:
    """An alternative with which the verdict is another."""

    alternative: Alternative
    comparison: Comparison
    """The test of the mean, with the other row."""


def alternatives(runs: StudyRuns, duel: Duel) -> Iterator[Alternative]:
    """What would be compared if nearly equal rows had been selected: one other row on one target at a time."""
    variants = [line for line in runs.lines if runs.study.row(line.row).variant_of == duel.line.row]
    for target in duel.parts:
        for is_own, lines in ((True, [duel.line, *variants]), (False, _lines_of(runs, duel.kind))):
            selected = (duel.ours if is_own else duel.best)[target]
            scores = _dev_scores(runs, lines, target)
            for other, score in scores.items():
                if other == selected or scores[selected] - score >= CLOSE:
                    continue
                ours = duel.ours | ({target: other} if is_own else {})
                best = duel.best | ({} if is_own else {target: other})
                part = runs.difference(runs.cell(ours[target], target), runs.cell(best[target], target), target)
                if part is not None:
                    changed = replace(duel, ours=ours, best=best, parts=duel.parts | {target: part})
                    yield Alternative(target, selected, other, (scores[selected], score), changed)


@once
def close_calls(runs: StudyRuns) -> list[CloseCall]:
    """Where a verdict depends on which of two nearly equal rows represents a kind, or the fusion."""
    tested = [duel for duel in duels(runs) if duel.comparison is not None]
    leading = [duel for duel in tested if duel.line == leading_fusion(runs)]
    calls = []
    for duel in tested:
        family = len(leading) if duel in leading else len(tested) - len(leading)
        for alternative in alternatives(runs, duel):
            mean = _mean(runs, alternative.duel)
            comparison = None if mean is None else mean.comparison(family * runs.study.looks)
            if comparison and duel.comparison and comparison.verdict != duel.comparison.verdict:
                calls.append(CloseCall(alternative, comparison))
    return calls
