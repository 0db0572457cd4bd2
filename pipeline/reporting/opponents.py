"""Each fusion against the best that one would do without it, on all targets together."""

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from pipeline.records.studies import Line
from pipeline.reporting.cells import difference_cell, judge, line_cell, text_cell
from pipeline.reporting.report import Cell, Table
from pipeline.reporting.runs import StudyRuns, mean_of, once, runs_of
from pipeline.reporting.text import amounts, capital, comparisons, listed, where_text
from pipeline.settings.parts import BOTTLENECKS
from pipeline.settings.rows import TRAITS
from pipeline.settings.study import Study
from pipeline.stats.paired import Comparison, Difference, Verdict, mean_difference


def _is_alone(study: Study, name: str) -> bool:
    """Whether nothing that a row trains or joins has read another task."""
    row = study.row(name)
    if row.joins or row.backbone is not None:
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
    "sequential fine-tuning": lambda study, name: TRAITS[study.row(name).method].by_source,
    "one adapter": _is_one_adapter,
    "the best row without fusion": lambda study, name: True,
}
"""Kinds of rows without fusion. The best row of a kind stands for it, on each target its own."""

_SAYS: dict[Verdict, str] = {
    "better": "is better than",
    "worse": "is worse than",
    "not significant": "does not differ significantly from",
}


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
    """Of the mean over the targets; None if the sides were chosen by what is compared, or lack seeds."""

    @property
    def unequal_trials(self) -> str:
        """How many trials each side had, where it is not as many; else empty."""
        if all(ours == theirs for ours, theirs in self.trials.values()):
            return ""
        ours, theirs = ("/".join(map(str, sorted({*side}))) for side in zip(*self.trials.values(), strict=True))
        return f"{ours} against {theirs} of {self.kind}"


@once
def leading_fusion(runs: StudyRuns) -> Line | None:
    """The fusion that the study asks about: its first row of fusion that has every target."""
    fusions = (line for line in runs.lines if runs.study.row(line.row).method == "fusion")
    return next((line for line in fusions if len(runs.groups(line)) == len(runs.study.targets)), None)


@once
def duels(runs: StudyRuns) -> list[Duel]:
    """Every row of fusion that has all targets against every kind of rows that has them.

    The comparisons of the leading fusion are corrected for one another alone, so that the study's question does not
    grow harder with every other fusion beside it; those of the others are a second family.
    """
    study = runs.study
    fusions = [line for line in runs.lines if study.row(line.row).method == "fusion"]
    without = [line for line in runs.lines if not holds_fusion(study, line.row)]
    result = []
    for line in fusions:
        variants = [other for other in fusions if study.row(other.row).variant_of == line.row]
        own = [line, *variants]
        ours = _best_by_target(runs, own)
        for kind, of_kind in OPPONENTS.items():
            those = [other for other in without if of_kind(study, other.row)]
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


def _mean(runs: StudyRuns, duel: Duel) -> Difference | None:
    both = [[scored for side in (duel.ours, duel.best) for scored in runs.cell(side[t], t)] for t in duel.parts]
    return mean_difference([*duel.parts.values()], runs.shared(both))


def leading_duels(runs: StudyRuns) -> dict[str, Comparison]:
    """The leading fusion's comparisons on the mean of the targets, by kind."""
    return {duel.kind: duel.comparison for duel in _of_leading(runs) if duel.comparison is not None}


def _of_leading(runs: StudyRuns) -> list[Duel]:
    return [duel for duel in duels(runs) if duel.line == leading_fusion(runs)]


def _candidates(runs: StudyRuns, lines: list[Line], target: str) -> list[Line]:
    """Those of ``lines`` that have the most seeds on a target: the mean of fewer is the best more easily by chance."""
    seeds = {line: len(runs.cell(line, target)) for line in lines}
    most = max(seeds.values(), default=0)
    return [line for line, count in seeds.items() if count == most > 0]


def _best_by_target(runs: StudyRuns, lines: list[Line]) -> dict[str, Line]:
    """Of ``lines`` the best on the validation rows, for each target that one of them has."""
    best = {}
    for target in runs.study.targets:
        scores = {
            line: statistics.mean(scored.score.dev for scored in runs.cell(line, target))
            for line in _candidates(runs, lines, target)
        }
        if scores:
            best[target] = max(scores, key=lambda line: scores[line])
    return best


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


def opponents_table(runs: StudyRuns) -> Table | None:
    """One line a fusion and kind of rows; None in a study without both."""
    rows, own, leading = [_row(runs, duel) for duel in duels(runs)], leading_duels(runs), leading_fusion(runs)
    title = capital(runs.title(leading)) if leading is not None and own else ""
    tested = [duel for duel in duels(runs) if duel.comparison is not None]
    others = comparisons(tested[len(own) :])
    chosen = any(duel.is_chosen_on_scores for duel in duels(runs))
    return Table.of(
        "opponents",
        rows,
        leading=title,
        own=comparisons(own),
        others=others,
        untested="Not tested" if chosen else "",
        trials="; ".join(duel.unequal_trials for duel in _of_leading(runs) if duel.unequal_trials),
    )


def _row(runs: StudyRuns, duel: Duel) -> dict[str, Cell]:
    cells = {"method": line_cell(runs, duel.line), "against": text_cell(duel.kind)}
    if len(duel.parts) == 1:
        ((target, best),) = duel.best.items()
        both = runs_of((*runs.cell(duel.ours[target], target), *runs.cell(best, target)))
        return cells | {target: difference_cell(duel.parts[target].value, both, duel.comparison, runs.title(best))}
    parts, used = {}, list[str]()
    for target, part in duel.parts.items():
        line, best = duel.ours[target], duel.best[target]
        both = runs_of((*runs.cell(line, target), *runs.cell(best, target)))
        variant = f"{runs.title(line)} " if line != duel.line else ""
        ours, theirs = duel.trials[target]
        unlike = f", best of {ours} trials against best of {theirs}" if ours != theirs else ""
        parts[target] = difference_cell(part.value, both, untested=f"{variant}against {runs.title(best)}{unlike}")
        used += both
    mean = mean_of(part.value for part in duel.parts.values())
    return cells | {"mean": difference_cell(mean, tuple(dict.fromkeys(used)), duel.comparison, "the best rows")} | parts


def opponents_sentences(runs: StudyRuns) -> Iterator[str]:
    """How the leading fusion does against the best row of every kind, on the mean of the targets."""
    leading, own = leading_fusion(runs), leading_duels(runs)
    if leading is None or not own:
        return
    tested = [duel for duel in _of_leading(runs) if duel.kind in own]
    named = {name: own[kinds[0]] for name, kinds in _by_opponent(runs, tested).items()}
    named = {
        name: comparison for verdict in _SAYS for name, comparison in named.items() if comparison.verdict == verdict
    }
    texts = dict(zip(named, amounts(named, runs.study), strict=True))
    groups = {
        _SAYS[comparison.verdict]: [texts[n] for n in named if named[n].verdict == comparison.verdict]
        for comparison in named.values()
    }
    clauses = [f"{says} {listed(group)}" for says, group in groups.items()]
    where = where_text(runs.study)
    more = [duel.kind for duel in tested if any(ours > theirs for ours, theirs in duel.trials.values())]
    trials = f" It was selected from more trials than {listed(more)}." if more else ""
    yield (
        f"On {where}, {runs.title(leading)} {'; it '.join(clauses)}. Each kind is represented by its best"
        f" row on the validation rows.{_variants(runs, leading)}{trials}"
    )


def _by_opponent(runs: StudyRuns, tested: Sequence[Duel]) -> dict[str, list[str]]:
    """The kinds whose best rows are the same on all targets, under a name for them: with the row, if it is one."""
    kinds = defaultdict[tuple[tuple[str, Line], ...], list[str]](list)
    for duel in tested:
        kinds[tuple(duel.best.items())].append(duel.kind)
    named = {}
    for best, own in kinds.items():
        first, *others = (runs.title(line) for line in dict.fromkeys(line for _, line in best))
        here = ""
        if others and len(own) > 1:
            here = ", here the same rows"
        elif not others and first not in own[0]:
            here = f", here {first}"
        named[listed(own) + here] = own
    return named


def _variants(runs: StudyRuns, leading: Line) -> str:
    """Where variants represent the leading fusion, in a sentence; empty where none does."""
    ours = next(duel.ours for duel in duels(runs) if duel.line == leading)
    on = {other: [target for target in ours if ours[target] == other] for other in dict.fromkeys(ours.values())}
    used = [f"{runs.title(other)} on {listed(targets)}" for other, targets in on.items() if other != leading]
    return f" Its variants, selected in the same way: {'; '.join(used)}." if used else ""
