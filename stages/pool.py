"""The leading fusions of several studies against the best rows without fusion, over the targets of all studies."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.records.ledger import Ledger
from pipeline.records.studies import StudyResult
from pipeline.reporting.notes import missing
from pipeline.reporting.opponents import (
    OPPONENTS,
    ByStudy,
    Duel,
    close_calls_of,
    duels_of_leading,
    holds_fusion,
    leading_fusion,
    mean_of_duels,
    own_fusions,
)
from pipeline.reporting.report import comparison_text, detectable_text, judge, listed, points
from pipeline.reporting.runs import StudyRuns, mean_of
from pipeline.settings.kinds import Row
from pipeline.stats.paired import Comparison, Difference
from pipeline.system.errors import PipelineError
from stages.report import result_of


@dataclass(frozen=True)
class Part:
    """What a target adds to a mean: the difference there, what each side is called, and from how many trials it was
    selected."""

    difference: Difference
    fusion: str
    against: str
    trials: tuple[int, int]


@dataclass(frozen=True)
class Pooled:
    """The leading fusion of each study against the best row of one kind, on the mean of all targets."""

    kind: str
    parts: Mapping[str, Part]
    """By target."""
    comparison: Comparison | None
    """The test of the mean; None where the targets do not have several seeds in common."""
    close: tuple[str, ...] = ()
    """The choices between nearly equal rows on which the verdict depends, in words."""

    @property
    def difference(self) -> float:
        value = mean_of(part.difference.value for part in self.parts.values())
        assert value is not None
        return value

    @property
    def lines(self) -> list[str]:
        """The test of the mean, the difference on each target with what represents the kind there, close choices."""
        untested = f"{points(self.difference)} points against {self.kind}, not tested: too few seeds are on all targets"
        test = self.comparison
        mean = untested if test is None else f"{comparison_text(test, self.kind)}. {detectable_text([test])}".strip()
        each = (f"{target} {points(part.difference.value)} ({part.against})" for target, part in self.parts.items())
        close = (f"  This verdict depends on a close choice. {choice}" for choice in self.close)
        return [mean, f"  {'; '.join(each)}", *close]

    def summary(self) -> dict[str, Any]:
        tested = ("interval", "p_value", "verdict", "detectable")  # None without a test
        return {
            "difference": self.difference,
            **{name: getattr(self.comparison, name, None) for name in tested},
            "close": [*self.close],
            "targets": {
                target: {**vars(part), "difference": part.difference.value} for target, part in self.parts.items()
            },
        }


@dataclass(frozen=True)
class Pool:
    """What several studies found together."""

    studies: Sequence[StudyRuns]
    pooled: Sequence[Pooled]

    @property
    def missing(self) -> list[str]:
        """The cells without a run, each with the reason."""
        return [f"{runs.study.name}: {cell}" for runs in self.studies for cell in missing(runs)]

    @property
    def untested(self) -> list[str]:
        """The kinds of rows that some of the studies have, and others lack on a target or cannot test."""
        counts = Counter(kind for runs in self.studies for kind in _testable(runs))
        return [kind for kind in OPPONENTS if 0 < counts[kind] < len(self.studies)]

    @property
    def lines(self) -> list[str]:
        targets = self.pooled[0].parts
        fusions = dict.fromkeys(part.fusion for part in targets.values())
        where = f"the mean of {len(targets)} targets" if len(targets) > 1 else next(iter(targets))
        seeds = " (one seed)" if any(each.comparison and each.comparison.seeds == 1 for each in self.pooled) else ""
        heading = f"{'; '.join(fusions)} of {listed([runs.study.name for runs in self.studies])}, on {where}{seeds}:"
        return [heading, *(line for pooled in self.pooled for line in pooled.lines)]

    def summary(self) -> dict[str, Any]:
        return {
            "studies": [runs.study.name for runs in self.studies],
            "seeds": [[*runs.study.seeds] for runs in self.studies],
            "looks": looks_of(self.studies),
            "against": {pooled.kind: pooled.summary() for pooled in self.pooled},
            "missing": self.missing,
            "untested": self.untested,
        }


def pool_studies(
    studies: Sequence[str],
    reports: Path,
    targets: Sequence[str] | None = None,
    variants: Sequence[str] = (),
    opponents: Sequence[str] = (),
) -> Pool:
    """Test the leading fusions of several studies over all their targets, from their reports alone.

    Args:
        studies: names or TOML files; each was compared, and no two have the same target.
        targets: only these, as if the studies had no others; None: all.
        variants: rows of fusion that may represent the first one of each study, besides those that the study names.
        opponents: studies whose rows without fusion join those of ``studies`` on the targets that both have.

    Raises:
        PipelineError: as :func:`pool`, a study was never compared here, no study has a target or a variant, or runs are
            gone.
    """
    results = [result_of(study, reports) for study in studies]
    for other in (result_of(study, reports) for study in opponents):
        results = [with_opponents(result, other) for result in results]
    if targets is not None:
        known = dict.fromkeys(target for result in results for target in result.study.targets)
        unknown = [target for target in targets if target not in known]
        if unknown or not targets:
            raise PipelineError(f"--targets {','.join(unknown)}: name some of {', '.join(known)}")
        results = [some for result in results if (some := with_targets(result, targets)) is not None]
    opened = [StudyRuns(with_variants(result, variants), Ledger(reports)) for result in results]
    return Pool(opened, pool(opened))


def with_targets(result: StudyResult, targets: Sequence[str]) -> StudyResult | None:
    """A study with some of its targets alone, as if it had no others; None if it has none of them."""
    own = tuple(target for target in result.study.targets if target in targets)
    entries = tuple(entry for entry in result.entries if entry.target in own)
    study = result.study.model_copy(update={"targets": own})
    return result.model_copy(update={"study": study, "entries": entries}) if own else None


def with_variants(result: StudyResult, rows: Sequence[str]) -> StudyResult:
    """A study in which ``rows`` are variants of its first fusion: on each target the validation rows select among them.

    Raises:
        PipelineError: one is no other row of fusion.
    """
    study = result.study
    first = next(iter(own_fusions(study)), None)
    others = [name for name in study.methods if study.row(name).kind.takes == "fusion" and name != first]
    if unknown := [name for name in rows if name not in others]:
        raise PipelineError(
            f"--variants {unknown[0]}: study {study.name} has no such row of fusion besides its first: name some of"
            f" {', '.join(others) or 'none'}"
        )
    variants = {name: study.row(name).model_copy(update={"variant_of": first}) for name in rows}
    return result.model_copy(update={"study": study.model_copy(update={"rows": study.rows | variants})})


def with_opponents(result: StudyResult, other: StudyResult) -> StudyResult:
    """A study with the rows without fusion of another, where both have the target and seed and the row is new to it.

    Raises:
        PipelineError: their backbones differ.
    """
    study, added = result.study, other.study
    if other.backbone != result.backbone:
        raise PipelineError(f"studies {study.name} and {added.name} have different backbones, so they cannot be pooled")
    targets = tuple(target for target in study.targets if target in added.targets)
    names = [name for name in added.methods if name not in study.methods and not holds_fusion(added, name)]

    def whole(name: str) -> Row:
        """The row with its whole recipe on each target, so that the recipe of ``study`` changes nothing in it."""
        tasks = {target: added.recipe_for(name, target).model_dump() for target in targets}
        return added.row(name).model_copy(update={"targets": targets, "tasks": tasks})

    bases = (name for name in added.rows if name not in (*study.rows, *names))
    rows = {name: whole(name) for name in (*names, *bases)}
    entries = (e for e in other.entries if e.line.row in names and e.target in targets and e.rows is None)
    entries = (entry for entry in entries if entry.seed in study.seeds)
    methods, looks = (*study.methods, *names), study.looks + added.looks - 1
    changed = study.model_copy(update={"rows": study.rows | rows, "methods": methods, "looks": looks})
    return result.model_copy(update={"study": changed, "entries": (*result.entries, *entries)}) if targets else result


def looks_of(studies: Sequence[StudyRuns]) -> int:
    """How often the results of studies were looked at: once together, and as often as each says beyond that."""
    return 1 + sum(runs.study.looks - 1 for runs in studies)


def pool(studies: Sequence[StudyRuns]) -> list[Pooled]:
    """The mean over the targets of several studies, for each kind of rows that all of them have.

    The row that represents a kind on a target is selected on the validation rows, within its study. The intervals hold
    together (Bonferroni), and are corrected for :func:`looks_of` the studies.

    Raises:
        PipelineError: a target is in two studies, the first fusion of a study lacks a target, the fusions are on
            different backbones, or the studies have no kind of rows in common that can be tested.
    """
    named = listed([runs.study.name for runs in studies])
    counts = Counter(target for runs in studies for target in runs.study.targets)
    if twice := [target for target, count in counts.items() if count > 1]:
        raise PipelineError(f"target {twice[0]} is in two of the studies {named}: pool studies of different targets")
    for runs in studies:
        first = next(iter(own_fusions(runs.study)), None)  # if it lacks a target, another one would lead
        lacking = [target for target in runs.study.targets if first is None or not runs.cell(first, target)]
        if lacking:
            title = None if first is None else runs.study.title(first)
            what = "it has no row of fusion" if first is None else f"its first fusion, {title}, has no run"
            raise PipelineError(
                f"study {runs.study.name}: {what} on {listed(lacking)}: run compare again, or leave these targets out"
                " with --targets"
            )
    own = {runs: _testable(runs) for runs in studies}
    leading = ((runs, line) for runs in studies if (line := leading_fusion(runs)) is not None)
    if len({scored.record.backbone_weights for runs, line in leading for scored in runs.all(line)}) > 1:
        raise PipelineError(f"studies {named} have fusions on different backbones: pool studies of one backbone")
    kinds = [kind for kind in OPPONENTS if all(kind in each for each in own.values())]
    if not kinds:
        raise PipelineError(
            f"{named}: no kind of rows without fusion can be tested in all: each study needs one on all its targets,"
            " and a --scoring other than dev to select among several rows"
        )
    by_kind = {kind: {runs: each[kind] for runs, each in own.items()} for kind in kinds}
    looks = looks_of(studies)
    verdicts = judge({kind: mean_of_duels(duels) for kind, duels in by_kind.items()}, looks)
    close = {
        kind: tuple(call.text for call in close_calls_of(by_kind[kind], test.verdict, len(verdicts) * looks))
        for kind, test in verdicts.items()
    }
    return [Pooled(kind, _parts(duels), verdicts.get(kind), close.get(kind, ())) for kind, duels in by_kind.items()]


def _testable(runs: StudyRuns) -> dict[str, Duel]:
    """By kind, the comparisons of the leading fusion whose rows were not selected by the scores that are compared."""
    return {duel.kind: duel for duel in duels_of_leading(runs) if not duel.is_chosen_on_scores}


def _parts(duels: ByStudy) -> dict[str, Part]:
    return {
        target: Part(difference, duel.ours[target].name, duel.best[target].name, duel.trials[target])
        for duel in duels.values()
        for target, difference in duel.parts.items()
    }
