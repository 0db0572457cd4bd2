"""What each line of the main table selected on the rows that score it: more options flatter the score more."""

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import reduce
from operator import or_

from pipeline.records.run_record import RunRecord
from pipeline.records.studies import Line
from pipeline.reporting.cells import line_cell
from pipeline.reporting.report import Cell, Table
from pipeline.reporting.runs import Scored, StudyRuns
from pipeline.reporting.text import MISSING
from pipeline.settings.kinds import KINDS
from pipeline.stats.metrics import THRESHOLDS


def choices_table(runs: StudyRuns) -> Table | None:
    """One line per line of the main table; None if every target has test rows separate from its validation rows."""
    if runs.scored and all(scored.score.test is not None for scored in runs.scored):
        return None
    rows = ((line_cell(runs, line), Cell(_text(runs, line))) for line in runs.lines)
    return Table.named("choices", ("method", "choices, and from how many"), rows)


def _text(runs: StudyRuns, line: Line) -> str:
    """``epoch (4), anchor (sts 2)``: tasks are named only if they differ in having the choice or in its options."""
    by_target = {  # each choice with the most options that a seed had
        target: reduce(or_, (_choices(runs, line.row, scored) for scored in group))
        for target, group in runs.groups(line).items()
        if group[0].score.test is None
    }
    if not by_target:
        return MISSING
    kinds = dict.fromkeys(kind for choices in by_target.values() for kind in choices)
    return ", ".join(f"{kind} ({_sizes(kind, by_target)})" for kind in kinds) or "nothing"


def _choices(runs: StudyRuns, row: str, scored: Scored) -> Counter[str]:
    """What was selected for one run, in order, with the number of options."""
    record, target = scored.record, scored.entry.target
    sizes = dict(_earlier_epochs(runs, record, target))
    sizes["settings"] = len(scored.trials)
    bases = [runs.study.row(base) for base in runs.study.bases_on(row, target)]
    what = "linear probe" if any(base.kind.keeps_weights for base in bases) else "own adapter"
    sizes[f"{what}'s settings"] = max((len(base.trials) for base in bases), default=0)
    sizes[what] = len(bases)
    sizes["anchor"] = len(record.anchor_candidates)
    if KINDS[record.kind].is_ensemble:
        sizes["members"] = len(record.identity["members"])
    elif target in record.trained_on:
        if record.recipe_of(target).cosine_threshold == "tuned":
            sizes["threshold"] = min(record.score(target).rows, THRESHOLDS)
        epochs = runs.curve(record.run)["epoch"]
        what = "epoch for all its tasks" if KINDS[record.kind].is_joint else "epoch"
        sizes[f"{what} or start" if (epochs == 0).any() else what] = len(epochs)
    return Counter({kind: size for kind, size in sizes.items() if size > 1})


def _earlier_epochs(runs: StudyRuns, record: RunRecord, target: str) -> Iterator[tuple[str, int]]:
    """The ancestors of a run whose epoch was selected on the target's rows, with their number of epochs."""
    for source in record.continued:
        before = runs.ledger.find(source.run)
        if before is None:
            continue
        if target in before.trained_on:
            what = "own adapter's epoch" if KINDS[before.kind].is_one_adapter else "earlier epoch"
            yield what, len(runs.curve(before.run))
        yield from _earlier_epochs(runs, before, target)


def _sizes(kind: str, by_target: Mapping[str, Counter[str]]) -> str:
    sizes = {target: choices[kind] for target, choices in by_target.items()}
    if len(set(sizes.values())) == 1:
        return str(next(iter(sizes.values())))
    return ", ".join(f"{target} {size}" for target, size in sizes.items() if size)
