"""The leading fusions of several studies against the best without them, over the targets of all studies together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.reporting.cells import judge
from pipeline.reporting.duels import OPPONENTS, Duel, duels_of_leading, leading_fusion
from pipeline.reporting.runs import Scored, StudyRuns, mean_of, shared_by
from pipeline.reporting.text import comparison_text, listed, points
from pipeline.stats.paired import Comparison, Difference, Shared, mean_difference
from pipeline.system.errors import PipelineError


@dataclass(frozen=True)
class Part:
    """What a target adds to a mean: the difference there, and what each side is called."""

    difference: Difference
    fusion: str
    against: str


@dataclass(frozen=True)
class Pooled:
    """The leading fusion of each study against the best row of one kind, on the mean of all targets."""

    kind: str
    parts: Mapping[str, Part]
    """By target."""
    comparison: Comparison | None
    """Of the mean; None where some targets have one seed and others several."""

    @property
    def difference(self) -> float:
        value = mean_of(part.difference.value for part in self.parts.values())
        assert value is not None
        return value

    @property
    def lines(self) -> tuple[str, str]:
        """What the test of the mean says, and the difference on each target with what stands for the kind there."""
        untested = f"{points(self.difference)} points against {self.kind}, not tested: some targets have one seed alone"
        mean = untested if self.comparison is None else comparison_text(self.comparison, self.kind)
        each = (f"{target} {points(part.difference.value)} ({part.against})" for target, part in self.parts.items())
        return mean, f"  {'; '.join(each)}"

    def summary(self) -> dict[str, Any]:
        test = self.comparison
        return {
            "difference": self.difference,
            "interval": None if test is None else [*test.interval],
            "p_value": None if test is None else test.p_value,
            "verdict": None if test is None else test.verdict,
            "targets": {
                target: {"difference": part.difference.value, "fusion": part.fusion, "against": part.against}
                for target, part in self.parts.items()
            },
        }


def pool(studies: Sequence[StudyRuns], targets: Sequence[str] | None = None) -> list[Pooled]:
    """The mean over the targets of several studies, for each kind of rows that all of them have.

    Which row stands for a kind on a target is selected on the validation rows of its study. The intervals hold together
    (Bonferroni), and are corrected for the most looks that a study has.

    Args:
        targets: only these; None: all.

    Raises:
        PipelineError: a target is in two studies or in none, a study has no fusion on all its targets, the fusions are
            on different backbones, or the studies have no kind of rows in common that can be tested.
    """
    _check_targets(studies, targets)
    by_study = {runs: _of_leading(runs) for runs in studies}
    _check_backbones(studies)
    kinds = [kind for kind in OPPONENTS if all(kind in own for own in by_study.values())]
    if not kinds:
        raise PipelineError(
            f"{_names(studies)} have no kind of rows in common that can be tested: each needs one on all its targets,"
            " and a --scoring other than dev to select among several rows"
        )
    parts = {kind: dict[str, Part]() for kind in kinds}
    means: dict[str, Difference | None] = {}
    for kind in kinds:
        groups: list[list[Scored]] = []
        for runs, own in by_study.items():
            duel = own[kind]
            chosen = [target for target in duel.parts if targets is None or target in targets]
            parts[kind] |= {target: _part(runs, duel, target) for target in chosen}
            groups += [[*runs.cell(duel.ours[t], t), *runs.cell(duel.best[t], t)] for t in chosen]
        means[kind] = mean_difference([part.difference for part in parts[kind].values()], _shared(studies, groups))
    verdicts = judge(means, max(runs.study.looks for runs in studies))
    return [Pooled(kind, parts[kind], verdicts.get(kind)) for kind in kinds]


def _of_leading(runs: StudyRuns) -> dict[str, Duel]:
    """By kind, those that can be tested."""
    own = duels_of_leading(runs)
    if not own:
        raise PipelineError(
            f"study {runs.study.name}: it needs runs of a fusion and of a row without it on all of its targets"
        )
    return {duel.kind: duel for duel in own if not duel.is_chosen_on_scores}


def _check_targets(studies: Sequence[StudyRuns], targets: Sequence[str] | None) -> None:
    study_of: dict[str, str] = {}
    for runs in studies:
        for target in runs.study.targets:
            if target in study_of:
                raise PipelineError(
                    f"target {target} is in two studies, {study_of[target]} and {runs.study.name}: pool studies of"
                    " different targets"
                )
            study_of[target] = runs.study.name
    if unknown := [target for target in targets or () if target not in study_of]:
        raise PipelineError(f"--targets {','.join(unknown)}: {_names(studies)} have {listed([*study_of])}")


def _check_backbones(studies: Sequence[StudyRuns]) -> None:
    leading = ((runs, line) for runs in studies if (line := leading_fusion(runs)) is not None)
    weights = {scored.record.backbone_weights for runs, line in leading for scored in runs.all(line)}
    if len(weights) > 1:
        raise PipelineError(f"{_names(studies)} have fusions on different backbones: pool studies of one backbone")


def _names(studies: Sequence[StudyRuns]) -> str:
    return f"studies {listed([runs.study.name for runs in studies])}"


def _part(runs: StudyRuns, duel: Duel, target: str) -> Part:
    return Part(duel.parts[target], runs.title(duel.ours[target]), runs.title(duel.best[target]))


def _shared(studies: Sequence[StudyRuns], groups: Sequence[Sequence[Scored]]) -> Shared:
    # With a seed of their own, sources move nothing from seed to seed: as in a single study.
    fixed = all(runs.study.source_seed is not None for runs in studies)
    return shared_by(groups, None if fixed else studies[0].ledger.find)
