"""What to use, the cheapest method that does about as well as the best, and how far to trust the tables."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from math import sqrt
from typing import Any

from pipeline.records.studies import Line
from pipeline.reporting import report
from pipeline.reporting.report import interval_text, paragraphs, points, value_text
from pipeline.reporting.runs import Scored, StudyRuns, mean_of, runs_behind
from pipeline.settings.recipe import MIN_STEPS
from pipeline.stats.paired import Comparison
from pipeline.system.reading import backbone_text

_NOTES: Mapping[str, Any] = report.TEXTS["notes"]
TOLERANCE = {"fp32": 1e-4, "bf16": 2e-2, "fp16": 5e-3}
"""Allowed difference of predictions between kinds of hardware, as a probability or a share of the score's range."""


@dataclass(frozen=True)
class Advice:
    """The method to use, and the tests behind that."""

    use: Line
    best: Line
    """The method with the highest mean over targets."""
    compared: dict[Line, Comparison]
    """Every other method against the best on that mean, corrected for all pairs of methods: the best is one of them."""
    costs: dict[Line, tuple[float, float]]
    """Of a run and all runs behind it: trained parameters and seconds, means over targets and seeds."""

    def cheaper(self, significant: bool) -> dict[Line, Comparison]:
        """The tests of the methods that cost less than :attr:`use`."""
        less = (line for line in self.compared if self.costs[line] < self.costs[self.use])
        return {line: self.compared[line] for line in less if self.compared[line].significant == significant}


@cache
def advice(runs: StudyRuns) -> Advice | None:
    """The method with the fewest trained parameters within one standard error of the best.

    Not "not shown to be worse than the best": few rows show nothing, and that would favour the weakest method. (The
    rule of one standard error: Breiman et al. 1984, section 3.4.3.) Of methods with equally many parameters, the one
    that took less time is cheaper. None without two methods that have every target and seed.
    """
    whole = [line for line in runs.lines if len(runs.groups(line)) == len(runs.study.targets)]
    most = max((len(runs.all(line)) for line in whole), default=0)
    means = {line: runs.mean(line) or 0.0 for line in whole if len(runs.all(line)) == most}
    best = max(means, key=lambda line: means[line], default=None)
    if best is None:
        return None
    differences = {line: runs.differences(line, best, runs.study.targets)[1] for line in means if line != best}
    # Without common seeds on a target they cannot be paired.
    others = {line: difference for line, difference in differences.items() if difference is not None}
    if not others:
        return None
    costs = {line: _cost(runs, line) for line in (best, *others)}
    near = [line for line, difference in others.items() if difference.value >= -sqrt(difference.variance)]
    family = len(costs) * len(others) // 2 * runs.study.looks
    compared = {line: difference.comparison(family) for line, difference in others.items()}
    return Advice(min((best, *near), key=lambda line: costs[line]), best, compared, costs)


def _cost(runs: StudyRuns, line: Line) -> tuple[float, float]:
    trained = []
    for scored in runs.all(line):
        records = map(runs.ledger.find, runs_behind(scored.record, runs.ledger.find))
        trained.append(sum(record.cost.trainable_parameters for record in records if record is not None))
    return mean_of(trained) or 0.0, mean_of(scored.total_seconds for scored in runs.all(line)) or 0.0


def advice_sentences(runs: StudyRuns) -> Iterator[str]:
    """What to use, why, and what the rows can show; nothing if no two methods can be compared."""
    found = advice(runs)
    if found is None:
        return
    study, (parameters, seconds) = runs.study, found.costs[found.use]
    rows = sorted({scored.score.scored_rows for scored in runs.all(found.best)})
    behind = found.compared.get(found.use)
    undecided = [test for test in found.compared.values() if not test.significant] or found.compared.values()
    missed = max(test.detectable for test in undecided)

    def named(tests: dict[Line, Comparison]) -> str:
        return "; ".join(report.amounts({runs.title(line): test for line, test in tests.items()}, study))

    yield from paragraphs(
        report.TEXTS["advice"]["text"],
        use=runs.title(found.use),
        highest=report.where_text(study) if found.use == found.best else "",
        near=report.where_text(study) if found.use != found.best else "",
        best=runs.title(found.best),
        behind="" if behind is None else f"{points(behind.difference)} points ({interval_text(behind, study)})",
        worse=named(found.cheaper(significant=True)),
        lower=named(found.cheaper(significant=False)),
        parameters=report.count(parameters),
        seconds=report.count(seconds),
        rows=" to ".join(f"{n:,}" for n in dict.fromkeys((rows[0], rows[-1]))),
        missed=points(missed, sign=False) if 0 < missed < 1 else "",
        nothing="" if missed < 1 else "no",
    )


def cautions(runs: StudyRuns) -> Iterator[str]:
    """What may change the advice."""
    if advice(runs) is not None:
        rising = dict.fromkeys(line for line, _, group in runs.cells() if runs.is_rising(group))
        yield from paragraphs(
            report.TEXTS["advice"]["cautions"],
            seed="One seed" if len(runs.study.seeds) == 1 else "",
            rising=runs.titles(rising),
            selected="selected" if any(scored.score.test is None for scored in runs.scored) else "",
        )


def notes(runs: StudyRuns) -> Iterator[str]:
    main = [scored for scored in runs.scored if scored.entry.rows is None]
    yield from _data(runs, main)
    yield from _machines(runs)
    yield from _added(runs)
    yield from runs.result.shared_text
    yield from _budgets(runs, main)
    rising = {name: runs.ended_rising(runs.all(name)) for name in runs.rows if runs.is_rising(runs.all(name))}
    rows = "; ".join(f"{runs.study.title(name)} {sum(last)} of {len(last)} runs" for name, last in rising.items())
    yield from paragraphs(_NOTES["rising"], steps=MIN_STEPS, rows=rows)
    yield from _trials(runs)
    if runs.study.source_seed is not None and len(runs.study.seeds) > 1:
        yield _line("source-seed", seed=runs.study.source_seed)
    yield from _starts(runs)
    yield from _closed(runs)
    yield from paragraphs(_NOTES["intervals"])


def _data(runs: StudyRuns, main: list[Scored]) -> Iterator[str]:
    train, rows = ({target: set[int]() for target in runs.study.targets} for _ in range(2))
    leaks: dict[str, int] = {}
    for scored in main:
        target, trainer = scored.entry.target, runs.trainer(scored)
        score = scored.score if trainer is None else trainer.score(target)
        if score.train_rows:
            train[target].add(score.train_rows)
        rows[target].add(scored.score.scored_rows)
        if leaked := score.dev_in_train if score.test is None else score.test_in_train:
            leaks[target] = max(leaks.get(target, 0), leaked)
    own = ((runs.study.title(name), runs.study.row(name).backbone) for name in runs.rows)
    others = "; ".join(f"{title}: {backbone_text(backbone)}" for title, backbone in own if backbone is not None)
    # Seconds depend on the hardware, and so does the precision that ``auto`` chooses.
    records = [scored.record for scored in main]
    places = {f"{record.recipe.precision} by {record.hardware}" for record in records}
    yield from paragraphs(
        _NOTES["data"],
        backbone=backbone_text(runs.result.backbone) + (f" ({others})" if others else ""),
        train=", ".join(_amounts(train)),
        rows=", ".join(_amounts(rows)),
        scoring=scoring_text(runs),
        kind="test" if all(scored.score.test is not None for scored in main) else "scored",
        places="; in ".join(sorted(places)),
        leaks=", ".join(f"{target} {rows}" for target, rows in leaks.items()),
    )


def _machines(runs: StudyRuns) -> Iterator[str]:
    """Notes if the runs mix kinds of hardware or precisions, with the extent."""
    records = {each.run: each for scored in runs.scored for each in (scored.record, *scored.trials)}.values()
    hardware = Counter(record.hardware for record in records)
    precisions = Counter(record.recipe.precision for record in records)
    rows = defaultdict[str, set[str]](set)
    for scored in runs.scored:
        rows[runs.study.title(scored.entry.line.row)].add(scored.record.recipe.precision)
    yield from paragraphs(
        _NOTES["machines"],
        kinds=len(hardware) if len(hardware) > 1 else 0,
        counts="; ".join(f"{name} ({count} run{'' if count == 1 else 's'})" for name, count in hardware.most_common()),
        tolerances=" and ".join(f"{TOLERANCE.get(p, max(TOLERANCE.values())):g} in {p}" for p in precisions),
        precisions="; ".join(_amounts(rows)) if len(precisions) > 1 else "",
    )


def scoring_text(runs: StudyRuns) -> str:
    """One sentence that says which rows are the test and the validation rows."""
    targets: dict[str, list[str]] = {}
    for target in runs.study.targets:
        targets.setdefault(_NOTES["scoring"][runs.study.scoring.of(target)], []).append(target)
    which = (f"{text} ({report.listed(own)})" if len(targets) > 1 else text for text, own in targets.items())
    return f"Scores are on {'; on '.join(which)}."


def _added(runs: StudyRuns) -> Iterator[str]:
    """The rows of other tasks that a line trained on, and how many were left out, for the first seed."""
    for line, target, group in runs.cells():
        trainer = runs.trainer(group[0])
        for source, added in (trainer.score(target).added if trainer is not None else {}).items():
            left_out = added.in_dev + added.in_test + added.in_other_dev
            counts = {"rows": added.rows, "left_out": left_out, "in_train": added.in_train}
            yield _line("added", title=runs.title(line), target=target, source=source, **counts)


def _budgets(runs: StudyRuns, main: list[Scored]) -> Iterator[str]:
    """A note if rows took numbers of optimiser steps on a target that differ by more than a tenth."""
    steps = defaultdict[str, list[tuple[str, int]]](list)
    for scored in main:
        trainer = runs.trainer(scored)
        if trainer is not None and runs.epochs(scored):
            steps[scored.entry.target].append((runs.study.title(scored.entry.line.row), runs.steps(trainer)))
    every = {target: [number for _, number in own] for target, own in steps.items()}
    unlike = [target for target, numbers in every.items() if max(numbers) > 1.1 * min(numbers)]
    by_row = defaultdict[str, set[int]](set)
    for title, number in (pair for target in unlike for pair in steps[target]):
        by_row[title].add(number)
    starts = runs.titles(Line(name) for name in runs.rows if runs.study.row(name).of)
    starts = f" Methods that start from trained models: {starts}." if starts else ""
    if unlike:
        yield _line("budgets", unlike=report.listed(unlike), steps="; ".join(_amounts(by_row)), starts=starts)


def _trials(runs: StudyRuns) -> Iterator[str]:
    """What was tuned, on which seeds, and whether all rows had the same number of trials."""
    first, *others = runs.study.seeds
    reused = "; other seeds reuse the choice" if others else ""
    where = f"seed {first}{reused}" if runs.study.tune_on == "first seed" else "each seed"
    for name in runs.rows:
        row = runs.study.row(name)
        if len(row.trials) > 1:
            values = "; ".join(f"{key} {', '.join(map(value_text, own))}" for key, own in (row.tune or {}).items())
            yield _line("tuned", title=runs.study.title(name), values=values, trials=len(row.trials), where=where)
    yield from paragraphs(_NOTES["edges"], edges="; ".join(_edges(runs)), unequal=runs.study.unequal_trials)


def _edges(runs: StudyRuns) -> Iterator[str]:
    """The tuned rows and numeric keys for which most choices were the same end of the grid.

    Both values of a two-value grid are ends, so such a grid is reported only if all choices agree.
    """
    study = runs.study
    tuned_on = study.seeds if study.tune_on == "each seed" else study.seeds[:1]  # other seeds reuse the choice
    for name in runs.rows:
        row = study.row(name)
        # A joint model fills the cells of all its targets.
        tuned = [scored for scored in runs.all(name) if scored.entry.seed in tuned_on]
        chosen = {scored.record.run: runs.recipe_of(scored).flat() for scored in tuned}
        for key, values in (row.tune or {}).items():
            numbers = {value for value in values if isinstance(value, int | float) and not isinstance(value, bool)}
            if len(numbers) < 2 or len(numbers) < len({*map(str, values)}):
                continue
            kept = Counter(recipe.get(key) for recipe in chosen.values())
            least = len(chosen) if len(numbers) == 2 else len(chosen) // 2 + 1
            for word, end in (("lowest", min(numbers)), ("highest", max(numbers))):
                if end and kept[end] >= least > 0:  # nothing is tried below 0
                    yield f"{study.title(name)}, {key} {value_text(end)} ({word}) in {kept[end]} of {len(chosen)}"


def _starts(runs: StudyRuns) -> Iterator[str]:
    """The tasks from which adapters were warm-started."""
    for name in runs.rows:
        row = runs.study.row(name)
        if not row.kind.is_one_adapter or row.of is None or row.through:
            continue
        by_target = []
        for target, group in runs.groups(Line(name)).items():
            starts = Counter(scored.record.anchor or "new adapter" for scored in group)
            by_target.append(f"{target}: {', '.join(f'{start} {n}' for start, n in starts.most_common())}")
        yield _line("starts", title=runs.study.title(name), starts="; ".join(by_target))


def _closed(runs: StudyRuns) -> Iterator[str]:
    """The fusions that selected no source, and so tell nothing about the worth of sources."""
    for line in runs.lines:
        by_target = []
        for target, group in runs.groups(line).items():
            taken = [[gate for task, gate in s.record.gates.items() if task != target] for s in group if s.record.gates]
            if closed := sum(not any(gates) for gates in taken):
                by_target.append(f"{target} ({closed} of {len(group)} run{'' if len(group) == 1 else 's'})")
        if by_target:
            yield _line("closed", title=report.capital(runs.title(line)), targets=report.listed(by_target))


def failure_sentences(runs: StudyRuns) -> Iterator[str]:
    failed = sum(entry.error is not None for entry in runs.result.entries)
    if failed:
        yield f"{failed} of {len(runs.result.entries)} cells have no run: see the notes."


def missing(runs: StudyRuns) -> Iterator[str]:
    """The cells without a run, with the reasons."""
    for entry in runs.result.entries:
        if entry.error is not None:
            point = f", {entry.rows} training rows" if entry.rows is not None else ""
            yield f"{entry.method} {entry.target} seed {entry.seed}{point}: {entry.error}"


def _line(note: str, **values: object) -> str:
    """A note of one paragraph, with values that may be empty."""
    return " ".join(_NOTES[note].split()).format(**values)


def _amounts(of_each: Mapping[str, Collection[int] | Collection[str]]) -> list[str]:
    """Items such as ``sst 900/1000``: a name and its values in order."""
    return [f"{name} {'/'.join(map(str, sorted(own))) or 'none'}" for name, own in of_each.items()]
