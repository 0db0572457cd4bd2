"""The fusions of several studies, tested together over the targets of all."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.records.ledger import Ledger
from pipeline.records.studies import StudyResult
from pipeline.reporting.notes import missing
from pipeline.reporting.pooled import (
    Pooled,
    looks_of,
    pool,
    untested_kinds,
    with_opponents,
    with_targets,
    with_variants,
)
from pipeline.reporting.runs import StudyRuns
from pipeline.reporting.text import listed
from pipeline.settings.study_files import name_of_study
from pipeline.system.errors import PipelineError
from stages.report import result_of


@dataclass(frozen=True)
class Pool:
    """What several studies found together."""

    studies: tuple[str, ...]
    seeds: tuple[tuple[int, ...], ...]
    """Those of each study."""
    looks: int
    """How often results were looked at, for which the tests are corrected."""
    pooled: tuple[Pooled, ...]
    missing: tuple[str, ...]
    """The cells without a run, each with the reason."""
    untested: tuple[str, ...]
    """The kinds of rows that only some of the studies have."""

    @property
    def lines(self) -> list[str]:
        targets = self.pooled[0].parts
        fusions = dict.fromkeys(part.fusion for part in targets.values())
        where = f"the mean of {len(targets)} targets" if len(targets) > 1 else next(iter(targets))
        seeds = " (one seed)" if any(each.comparison and each.comparison.seeds == 1 for each in self.pooled) else ""
        heading = f"{'; '.join(fusions)} of {listed(self.studies)}, on {where}{seeds}:"
        return [heading, *(line for pooled in self.pooled for line in pooled.lines)]

    def summary(self) -> dict[str, Any]:
        return {
            "studies": [*self.studies],
            "seeds": [[*seeds] for seeds in self.seeds],
            "looks": self.looks,
            "against": {pooled.kind: pooled.summary() for pooled in self.pooled},
            "missing": [*self.missing],
            "untested": [*self.untested],
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
        PipelineError: as :func:`pipeline.reporting.pooled.pool`, a study is named twice or was never compared here, no
            study has a target or a variant, or runs are gone.
    """
    names = [name_of_study(study) for study in studies]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise PipelineError(f"pool: {twice} twice: name each study once")
    results = [result_of(study, reports) for study in studies]
    for other in (result_of(study, reports) for study in opponents):
        results = [with_opponents(result, other) for result in results]
    ledger = Ledger(reports)
    opened = [StudyRuns(with_variants(result, variants), ledger) for result in _selected(results, targets)]
    return Pool(
        studies=tuple(runs.study.name for runs in opened),
        seeds=tuple(runs.study.seeds for runs in opened),
        looks=looks_of(opened),
        pooled=tuple(pool(opened)),
        missing=tuple(f"{runs.study.name}: {cell}" for runs in opened for cell in missing(runs)),
        untested=tuple(untested_kinds(opened)),
    )


def _selected(results: Sequence[StudyResult], targets: Sequence[str] | None) -> list[StudyResult]:
    if targets is None:
        return [*results]
    known = dict.fromkeys(target for result in results for target in result.study.targets)
    unknown = [target for target in targets if target not in known]
    if unknown or not targets:
        raise PipelineError(f"--targets {','.join(unknown)}: name some of {', '.join(known)}")
    return [some for result in results if (some := with_targets(result, targets)) is not None]
