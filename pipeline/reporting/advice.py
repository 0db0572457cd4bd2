"""What to use: the cheapest method that does about as well as the best, why, and what the scored rows can show."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from math import sqrt

from pipeline.records.studies import Line
from pipeline.reporting.report import TEXTS, amounts, count, interval_text, paragraphs, points, where_text
from pipeline.reporting.runs import StudyRuns, mean_of, runs_behind
from pipeline.stats.paired import Comparison, mean_difference


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
    others = {}
    for line in (line for line in means if line != best):
        pairs = [(runs.cell(line, target), runs.cell(best, target), target) for target in runs.study.targets]
        parts = [part for pair in pairs if (part := runs.difference(*pair)) is not None]
        shared = runs.shared([[*ours, *theirs] for ours, theirs, _ in pairs])
        # Without common seeds on a target they cannot be paired.
        if len(parts) == len(pairs) and (difference := mean_difference(parts, shared)) is not None:
            others[line] = difference
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
        return "; ".join(amounts({runs.title(line): test for line, test in tests.items()}, study))

    yield from paragraphs(
        TEXTS["advice"]["text"],
        use=runs.title(found.use),
        highest=where_text(study) if found.use == found.best else "",
        near=where_text(study) if found.use != found.best else "",
        best=runs.title(found.best),
        behind="" if behind is None else f"{points(behind.difference)} points ({interval_text(behind, study)})",
        worse=named(found.cheaper(significant=True)),
        lower=named(found.cheaper(significant=False)),
        parameters=count(parameters),
        seconds=count(seconds),
        rows=" to ".join(f"{n:,}" for n in dict.fromkeys((rows[0], rows[-1]))),
        missed=points(missed, sign=False) if 0 < missed < 1 else "",
        nothing="" if missed < 1 else "no",
    )


def cautions(runs: StudyRuns) -> Iterator[str]:
    """What may change the advice."""
    if advice(runs) is not None:
        rising = dict.fromkeys(line for line, _, group in runs.cells() if runs.is_rising(group))
        yield from paragraphs(
            TEXTS["advice"]["cautions"],
            seed="One seed" if len(runs.study.seeds) == 1 else "",
            rising=runs.titles(rising),
            selected="selected" if any(scored.score.test is None for scored in runs.scored) else "",
        )
