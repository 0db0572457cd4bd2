"""Table and sentences that compare every fusion with the best rows without fusion."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from pipeline.records.studies import Line
from pipeline.reporting.cells import difference_cell, judged, line_cell, text_cell
from pipeline.reporting.duels import (
    CloseCall,
    Duel,
    cell_of,
    close_calls,
    duels,
    duels_of_leading,
    leading_duels,
    leading_fusion,
    names_of,
)
from pipeline.reporting.report import Cell, Table
from pipeline.reporting.runs import StudyRuns, mean_of, runs_of
from pipeline.reporting.text import (
    amounts,
    capital,
    comparison_text,
    comparisons,
    detectable_text,
    listed,
    number,
    where_text,
)
from pipeline.stats.paired import Verdict

_SAYS: dict[Verdict, str] = {
    "better": "is better than",
    "worse": "is worse than",
    "not significant": "does not differ significantly from",
}


def opponents_table(runs: StudyRuns) -> Table | None:
    """One line per fusion and kind of row; None in a study without both."""
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
        trials="; ".join(duel.unequal_trials for duel in duels_of_leading(runs) if duel.unequal_trials),
        close=" ".join(map(close_text, close_calls(runs))),
    )


def close_text(call: CloseCall) -> str:
    """``On sst, a was selected (0.612 on dev). With b (0.608) there, full fusion would have +1.3 points ....``"""
    own, score = map(number, call.dev)
    test, title = comparison_text(call.comparison, call.duel.kind), call.runs.title
    where = f"On {call.target}, {names_of(call.runs, call.selected)} was selected ({own} on dev)."
    return f"{where} With {title(call.other)} ({score}) there, {title(call.duel.line)} would have {test}."


def _row(runs: StudyRuns, duel: Duel) -> dict[str, Cell]:
    cells = {"method": line_cell(runs, duel.line), "against": text_cell(duel.kind)}
    parts = {target: _part(runs, duel, target) for target in duel.parts}
    if len(parts) == 1:
        return cells | {target: judged(cell, duel.comparison, "the best row") for target, cell in parts.items()}
    mean = mean_of(part.value for part in duel.parts.values())
    used = tuple(dict.fromkeys(run for cell in parts.values() for run in cell.runs))
    return cells | {"mean": difference_cell(mean, used, duel.comparison, "the best rows")} | parts


def _part(runs: StudyRuns, duel: Duel, target: str) -> Cell:
    """The difference on a target and the two rows compared. It has no verdict, because the mean is tested."""
    own, best, (ours, theirs) = duel.ours[target], duel.best[target], duel.trials[target]
    variant = f"{names_of(runs, own)} " if {*own.values()} != {duel.line} else ""
    unlike = f", best of {ours} trials against best of {theirs}" if ours != theirs else ""
    used = runs_of((*cell_of(runs, own, target), *cell_of(runs, best, target)))
    untested = f"{variant}against {names_of(runs, best)}{unlike}"
    return difference_cell(duel.parts[target].value, used, untested=untested)


def opponents_sentences(runs: StudyRuns) -> Iterator[str]:
    """How the leading fusion does against the best row of every kind, on the mean over targets."""
    leading, own = leading_fusion(runs), leading_duels(runs)
    if leading is None or not own:
        return
    tested = [duel for duel in duels_of_leading(runs) if duel.kind in own]
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
    choice = "whose seed may be lucky" if len(runs.study.seeds) == 1 else "for each seed by the scores of the others"
    more = [duel.kind for duel in tested if any(ours > theirs for ours, theirs in duel.trials.values())]
    trials = f" It was selected from more trials than {listed(more)}." if more else ""
    yield (
        f"On {where}, {runs.title(leading)} {'; it '.join(clauses)}. {detectable_text([*own.values()])} Each kind is"
        f" represented by its best row on the validation rows, {choice}.{_variants(runs, leading)}{trials}"
        f"{_close_kinds(runs)}"
    )


def _close_kinds(runs: StudyRuns) -> str:
    """A sentence on the kinds for which the leading fusion's verdict depends on a close choice, or empty."""
    where = defaultdict[str, list[str]](list)
    for call in close_calls(runs):
        if call.duel.line == leading_fusion(runs) and call.target not in where[call.duel.kind]:
            where[call.duel.kind].append(call.target)
    clauses = [f"that against {kind} on {listed(targets)}" for kind, targets in where.items() if targets]
    return f" Verdicts that depend on a choice between nearly equal rows: {listed(clauses)}." if clauses else ""


def _by_opponent(runs: StudyRuns, tested: Sequence[Duel]) -> dict[str, list[str]]:
    """Kinds with the same best rows on all targets, grouped under a name; it includes the row if there is just one."""
    kinds = defaultdict[tuple[tuple[str, int, Line], ...], list[str]](list)
    for duel in tested:
        best = ((target, seed, line) for target, selected in duel.best.items() for seed, line in selected.items())
        kinds[tuple(best)].append(duel.kind)
    named = {}
    for lines, own in kinds.items():
        first, *others = (runs.title(line) for line in dict.fromkeys(line for *_, line in lines))
        here = ""
        if others and len(own) > 1:
            here = ", here the same rows"
        elif not others and first not in own[0]:
            here = f", here {first}"
        named[listed(own) + here] = own
    return named


def _variants(runs: StudyRuns, leading: Line) -> str:
    """A sentence on the targets where variants represent the leading fusion, or empty."""
    ours = next(duel.ours for duel in duels(runs) if duel.line == leading)
    on = defaultdict[str, list[str]](list)
    for target, selected in ours.items():
        if {*selected.values()} != {leading}:
            on[names_of(runs, selected)].append(target)
    used = [f"{names} on {listed(targets)}" for names, targets in on.items()]
    return f" Its variants, selected in the same way: {'; '.join(used)}." if used else ""
