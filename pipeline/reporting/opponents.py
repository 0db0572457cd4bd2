"""Compare every fusion with the best method of each kind without fusion, over all targets together."""

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product
from typing import NamedTuple

from pipeline.records.studies import Line
from pipeline.reporting import report
from pipeline.reporting.report import Cell, Table
from pipeline.reporting.runs import Scored, StudyRuns, mean_of, runs_of, shared_by
from pipeline.settings.parts import BOTTLENECKS
from pipeline.settings.study import Opponent, Study
from pipeline.stats.paired import Comparison, Difference, Verdict, mean_difference

CLOSE = 0.01
"""Rows whose validation scores differ by less than this could both have been selected."""


def _is_alone(study: Study, name: str) -> bool:
    """Whether nothing that a row trains or joins has learned from another task."""
    row = study.row(name)
    if row.kind.combines and row.experts and row.of:
        return _is_alone(study, row.of)
    if row.joins_tasks or row.backbone is not None:
        return False
    own = ((each, target) for target in study.targets_of(name) for each in (name, *study.bases_on(name, target)))
    recipes = (study.recipe_for(*each, trial=trial) for each in own for trial in study.row(each[0]).trials)
    return not any(recipe.extra for recipe in recipes) and all(_is_alone(study, each) for each in row.members)


def _is_one_adapter(study: Study, name: str) -> bool:
    """Whether a row trains adapters of the kind that a fusion mixes: bottlenecks, fresh or warm-started."""
    row, targets = study.row(name), study.targets_of(name)
    if not row.kind.is_one_adapter:
        return False
    recipes = (study.recipe_for(name, target, trial=trial) for target in targets for trial in row.trials)
    return all(recipe.adapter.kind in BOTTLENECKS for recipe in recipes)


def holds_fusion(study: Study, name: str) -> bool:
    """Whether a row is a fusion, or an ensemble with a fusion among its members."""
    row = study.row(name)
    return row.kind.takes == "fusion" or any(holds_fusion(study, member) for member in row.members)


OPPONENTS: dict[Opponent, Callable[[Study, str], bool]] = {
    "the target alone": _is_alone,
    "sequential fine-tuning": lambda study, name: study.row(name).kind.is_by_source,
    "one adapter": _is_one_adapter,
    "the best method without fusion": lambda study, name: True,
}
"""On each target, the best method of a kind represents it."""


@dataclass(frozen=True)
class Side:
    """What represents one side of a duel on a target."""

    scores: Mapping[Line, Mapping[int, float]]
    """The validation scores of the candidates, by seed."""
    selected: Mapping[int, Line]
    """The line that represents the side, by seed."""
    group: Sequence[Scored]
    """The runs of the selected lines, by seed."""
    name: str
    """The title of the selected line; several with the number of seeds that they represent: ``a (4), b (1)``."""
    trials: int
    """The number of runs per seed that it was chosen from; runs that candidates share count once."""
    is_chosen_on_scores: bool
    """Whether it was selected from several lines by its scores on the compared rows."""


@dataclass(frozen=True)
class Duel:
    """A fusion row against the best row of one kind on each target."""

    line: Line
    ours: dict[str, Side]
    """By target, selected from the line and its variants."""
    kind: str
    best: dict[str, Side]
    """By target, selected from the lines of the kind."""
    parts: dict[str, Difference]
    """By target, over the common seeds."""
    comparison: Comparison | None = None
    """Test of the mean over targets; None if a side was selected on the compared rows, or seeds are missing."""

    @property
    def trials(self) -> dict[str, tuple[int, int]]:
        """By target: the number of runs per seed that each side was chosen from."""
        return {target: (self.ours[target].trials, self.best[target].trials) for target in self.parts}

    @property
    def is_chosen_on_scores(self) -> bool:
        return any(side.is_chosen_on_scores for sides in (self.ours, self.best) for side in sides.values())


ByStudy = Mapping[StudyRuns, Duel]
"""Duels with one kind of row; their differences are averaged over the targets of all studies."""


def own_fusions(study: Study) -> list[str]:
    """The fusion rows that are not variants of another row, in the study's order."""
    rows = ((name, study.row(name)) for name in study.methods)
    return [name for name, row in rows if row.kind.takes == "fusion" and row.variant_of is None]


@cache
def leading_fusion(runs: StudyRuns) -> Line | None:
    """The fusion that the study asks about: its first fusion row that has every target and is not a variant."""
    fusions = (line for line in runs.lines if line.row in own_fusions(runs.study))
    return next((line for line in fusions if len(runs.groups(line)) == len(runs.study.targets)), None)


@cache
def duels(runs: StudyRuns) -> list[Duel]:
    """Every fusion row that has all targets against every kind of row that has them.

    The leading fusion's comparisons form one family and those of all other fusions a second, so that adding fusions
    does not make the study's main question harder.
    """
    study, result = runs.study, []
    others = [line for line in runs.lines if not holds_fusion(study, line.row)]
    asked = {kind: is_one for kind, is_one in OPPONENTS.items() if study.primary in (None, kind)}
    kinds = {kind: _sides(runs, [o for o in others if is_one(study, o.row)]) for kind, is_one in asked.items()}
    for line in (line for line in runs.lines if study.row(line.row).kind.takes == "fusion"):
        ours = _sides(runs, [line, *(other for other in runs.lines if study.row(other.row).variant_of == line.row)])
        for kind, best in kinds.items():
            both = [target for target in study.targets if target in ours and target in best]
            parts = {target: runs.difference(ours[target].group, best[target].group, target) for target in both}
            known = {target: difference for target, difference in parts.items() if difference is not None}
            if len(known) == len(study.targets):
                result.append(Duel(line, ours, kind, best, known))
    verdicts: dict[tuple[Line, str], Comparison] = {}
    for leads in (True, False):
        family = [d for d in result if (d.line == leading_fusion(runs)) is leads and not d.is_chosen_on_scores]
        verdicts |= report.judge({(d.line, d.kind): mean_of_duels({runs: d}) for d in family}, study.looks)
    return [replace(duel, comparison=verdicts.get((duel.line, duel.kind))) for duel in result]


def mean_of_duels(duels: ByStudy) -> Difference | None:
    """The mean difference over all targets of all studies; None if the seeds allow no test."""
    parts = [difference for duel in duels.values() for difference in duel.parts.values()]
    groups = {runs: [[*own.ours[t].group, *own.best[t].group] for t in own.parts] for runs, own in duels.items()}
    # Sources with one fixed seed add no variance between seeds.
    free = {runs: own for runs, own in groups.items() if runs.study.source_seed is None}
    shared = shared_by([group for own in groups.values() for group in own], None)
    if shared != "runs" and free:
        shared = shared_by([group for own in free.values() for group in own], next(iter(free)).ledger.find)
    return mean_difference(parts, shared)


def leading_duels(runs: StudyRuns) -> dict[str, Comparison]:
    """The leading fusion's comparisons on the mean over targets, by kind."""
    return {duel.kind: duel.comparison for duel in duels_of_leading(runs) if duel.comparison is not None}


def duels_of_leading(runs: StudyRuns) -> list[Duel]:
    """The leading fusion's duels, tested or not; empty if there is no leading fusion."""
    return [duel for duel in duels(runs) if duel.line == leading_fusion(runs)]


def _sides(runs: StudyRuns, lines: Sequence[Line]) -> dict[str, Side]:
    """For each target and seed, the line with the best validation score among ``lines``.

    The line for a seed is selected on the *other* seeds. Selecting by the mean over all seeds would favour lines with
    lucky seeds, and so the side with more lines (simulated: by 0.4 points with two lines, 1.1 with eleven). A single
    seed selects for itself.

    Ties go to the first row, then to its first source by name, because the order of sources depends on other targets.
    """
    rows = list(dict.fromkeys(line.row for line in lines))
    ordered = sorted(lines, key=lambda line: (rows.index(line.row), line.source))
    sides = {}
    for target in runs.study.targets:
        cells = {line: {scored.entry.seed: scored for scored in runs.cell(line, target)} for line in ordered}
        most = max(map(len, cells.values()), default=0)
        # Lines with fewer seeds are no candidates: a mean over fewer seeds is more easily the best by chance.
        cells = {line: own for line, own in cells.items() if len(own) == most > 0}
        if not cells:
            continue
        scores = {line: {seed: scored.score.dev for seed, scored in own.items()} for line, own in cells.items()}
        selected, trials = _selected(scores), dict[Line, int]()
        for line in cells:
            by_row = runs.study.trials_by_row(line.row, target)
            trials |= {line if row == line.row else Line(row): count for row, count in by_row.items()}
        group = [cells[line][seed] for seed, line in selected.items()]
        name = report.counted(map(runs.title, selected.values()))
        chosen = len(cells) > 1 and any(scored.score.test is None for own in cells.values() for scored in own.values())
        sides[target] = Side(scores, selected, group, name, sum(trials.values()), chosen)
    return sides


def _selected(scores: Mapping[Line, Mapping[int, float]]) -> dict[int, Line]:
    """For each seed, the line with the best mean over the other seeds."""

    def without(left_out: int, line: Line) -> float:
        others = [score for seed, score in scores[line].items() if seed != left_out]
        return statistics.mean(others or scores[line].values())

    seeds = sorted({seed for of_line in scores.values() for seed in of_line})
    return {seed: max((line for line in scores if seed in scores[line]), key=partial(without, seed)) for seed in seeds}


class CloseCall(NamedTuple):
    """A row that was nearly selected for one side of a duel on one target, and would change the verdict."""

    target: str
    duel: Duel
    """The duel with the other row on that target, for all seeds."""
    comparison: Comparison
    """The test of the mean with the other row."""
    text: str
    """``On sst, a was selected (0.612 on dev). With b (0.608) there, full fusion would have +1.3 points ....``"""


def close_calls_of(duels: ByStudy, verdict: Verdict, family: int) -> Iterator[CloseCall]:
    """The cases in which the other of two nearly equal rows on one target would change the ``verdict``."""
    for runs, duel in duels.items():
        for target, is_own in product(duel.parts, (True, False)):
            side = (duel.ours if is_own else duel.best)[target]
            scores = {line: statistics.mean(own.values()) for line, own in side.scores.items()}
            for other, score in scores.items():
                if {*side.selected.values()} == {other} or max(scores.values()) - score >= CLOSE:
                    continue
                selected = dict.fromkeys(side.scores[other], other)
                there = {target: replace(side, selected=selected, group=runs.cell(other, target))}
                ours, best = (duel.ours | there, duel.best) if is_own else (duel.ours, duel.best | there)
                if (part := runs.difference(ours[target].group, best[target].group, target)) is None:
                    continue
                changed = replace(duel, ours=ours, best=best, parts=duel.parts | {target: part})
                mean = mean_of_duels({**duels, runs: changed})
                comparison = None if mean is None else mean.comparison(family)
                if comparison is None or comparison.verdict == verdict:
                    continue
                dev = statistics.mean(scored.score.dev for scored in side.group)
                text = (
                    f"On {target}, {side.name} was selected ({report.number(dev)} on dev). With"
                    f" {runs.title(other)} ({report.number(score)}) there, {runs.title(duel.line)} would have"
                    f" {report.comparison_text(comparison, duel.kind)}."
                )
                yield CloseCall(target, changed, comparison, text)


@cache
def close_calls(runs: StudyRuns) -> list[CloseCall]:
    """The cases in which a verdict depends on which of two nearly equal rows represents a kind or the fusion."""
    tested = [(duel, duel.comparison) for duel in duels(runs) if duel.comparison is not None]
    leading = sum(duel.line == leading_fusion(runs) for duel, _ in tested)
    calls = list[CloseCall]()
    for duel, comparison in tested:
        family = leading if duel.line == leading_fusion(runs) else len(tested) - leading
        calls += close_calls_of({runs: duel}, comparison.verdict, family * runs.study.looks)
    return calls


def opponents_table(runs: StudyRuns) -> Table | None:
    """One line per fusion and kind of row; None in a study without both."""
    own, leading, every = leading_duels(runs), leading_fusion(runs), duels(runs)
    unequal = []
    for duel in duels_of_leading(runs):
        ours, theirs = ([*side] for side in zip(*duel.trials.values(), strict=True))
        if ours != theirs:
            numbers = ("/".join(map(str, sorted({*side}))) for side in (ours, theirs))
            unequal.append(f"{' against '.join(numbers)} of {duel.kind}")
    return Table.of(
        "opponents",
        [_duel_row(runs, duel) for duel in every],
        leading=report.capital(runs.title(leading)) if leading is not None and own else "",
        own=report.comparisons(own),
        others=report.comparisons([duel for duel in every if duel.comparison is not None][len(own) :]),
        untested="Not tested" if any(duel.is_chosen_on_scores for duel in every) else "",
        trials="; ".join(unequal),
        close=" ".join(call.text for call in close_calls(runs)),
    )


def _duel_row(runs: StudyRuns, duel: Duel) -> dict[str, Cell]:
    parts = {}
    for target, difference in duel.parts.items():
        own, best = duel.ours[target], duel.best[target]
        variant = f"{own.name} " if {*own.selected.values()} != {duel.line} else ""
        trials = f", best of {own.trials} trials against best of {best.trials}" if own.trials != best.trials else ""
        # It has no verdict, because the mean is tested.
        detail = f"{variant}against {best.name}{trials}"
        parts[target] = report.difference_cell(difference.value, runs_of((*own.group, *best.group)), untested=detail)
    cells = {"method": report.line_cell(runs, duel.line), "against": report.text_cell(duel.kind)}
    if len(parts) == 1:
        ((target, cell),) = parts.items()
        return cells | {target: report.judged(cell, duel.comparison, "the best method")}
    mean = mean_of(part.value for part in duel.parts.values())
    used = tuple(dict.fromkeys(run for cell in parts.values() for run in cell.runs))
    return cells | {"mean": report.difference_cell(mean, used, duel.comparison, "the best methods")} | parts


_CLAUSES: dict[Verdict, str] = {
    "better": "is better than",
    "worse": "is worse than",
    "not significant": "does not differ significantly from",
}


def opponents_sentences(runs: StudyRuns) -> Iterator[str]:
    """How the leading fusion does against the best row of every kind, on the mean over targets."""
    leading, own = leading_fusion(runs), leading_duels(runs)
    if leading is None or not own:
        return
    tested = [duel for duel in duels_of_leading(runs) if duel.kind in own]
    named = sorted(_by_opponent(runs, tested).items(), key=lambda item: [*_CLAUSES].index(item[1].verdict))
    groups = defaultdict[Verdict, list[str]](list)
    for (_, comparison), text in zip(named, report.amounts(dict(named), runs.study), strict=True):
        groups[comparison.verdict].append(text)
    variants = ((side.name, t) for t, side in tested[0].ours.items() if {*side.selected.values()} != {leading})
    calls = (call for call in close_calls(runs) if call.duel.line == leading)
    more = [duel.kind for duel in tested if any(ours > theirs for ours, theirs in duel.trials.values())]
    sentences = report.paragraphs(
        report.TEXTS["sentences"]["opponents"],
        where=report.where_text(runs.study),
        leading=runs.title(leading),
        clauses="; it ".join(f"{_CLAUSES[verdict]} {report.listed(group)}" for verdict, group in groups.items()),
        detectable=report.detectable_text([*own.values()]),
        choice="whose seed may be lucky" if len(runs.study.seeds) == 1 else "for each seed by the scores of the others",
        variants="; ".join(_on_targets(variants)),
        more=report.listed(more),
        close=report.listed(_on_targets((f"that against {call.duel.kind}", call.target) for call in calls)),
    )
    yield " ".join(sentences)


def _on_targets(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """Names with their targets, such as ``a on sst and sts``."""
    on = defaultdict[str, dict[str, None]](dict)
    for name, target in pairs:
        on[name][target] = None
    return [f"{name} on {report.listed([*targets])}" for name, targets in on.items()]


def _by_opponent(runs: StudyRuns, tested: Sequence[Duel]) -> dict[str, Comparison]:
    """The comparisons, kinds with the same best rows on all targets as one; its name includes the row if it is one."""
    kinds = defaultdict[tuple[tuple[str, int, Line], ...], list[Duel]](list)
    for duel in tested:
        best = ((target, seed, line) for target, side in duel.best.items() for seed, line in side.selected.items())
        kinds[tuple(best)].append(duel)
    named = {}
    for lines, own in kinds.items():
        first, *others = (runs.title(line) for line in dict.fromkeys(line for *_, line in lines))
        here = ""
        if others and len(own) > 1:
            here = ", here the same methods"
        elif not others and first not in own[0].kind:
            here = f", here {first}"
        assert own[0].comparison is not None
        named[report.listed([duel.kind for duel in own]) + here] = own[0].comparison
    return named
